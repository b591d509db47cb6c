"""Compiled C code for the most expensive steps on a CPU."""
