"""Studies: what agents and server agree on before a run, and the calls that run one."""
