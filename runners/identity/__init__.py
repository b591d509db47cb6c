"""Find the folder of a run by setting and seed, and prepare this folder for the run.

A run is new, resumes an interrupted run, continues a finished run with more rounds, or repeats an earlier run.
"""
