"""Identify a run by its setting and seed, find its folder, and resume, continue or repeat it there."""
