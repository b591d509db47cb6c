"""Studies, and functions that run them.

A study holds the settings that agents and server agree on before a run.
"""
