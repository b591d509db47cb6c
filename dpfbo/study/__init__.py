"""Studies, the settings that agents and server agree on before a run, and functions that run a study."""
