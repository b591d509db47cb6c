"""Compiled C code for the most expensive steps on a CPU: how it is built and called (see docs/results/speed.md)."""
