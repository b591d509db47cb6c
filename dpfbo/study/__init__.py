"""Studies, which state what agents and server agree on before a run, and the functions that run a study."""
