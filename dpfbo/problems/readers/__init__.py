"""Readers of data files, which bound the files' sizes and check their contents."""
