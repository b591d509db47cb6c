"""Identify a run by setting and seed, find its folder, and resume it, continue it with more rounds, or repeat it."""
