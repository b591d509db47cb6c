"""Build and call compiled C code for the most expensive steps on a CPU (see docs/results/speed.md)."""
