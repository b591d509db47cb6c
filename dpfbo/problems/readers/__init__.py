"""Readers of data files, which are bounded and checked."""
