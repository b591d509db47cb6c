"""The steps that cost most on a CPU as compiled C: the library and its calls; see docs/results/speed.md."""
