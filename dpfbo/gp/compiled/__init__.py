"""The most expensive steps on a CPU, in compiled C: the library and its calls; see docs/results/speed.md."""
