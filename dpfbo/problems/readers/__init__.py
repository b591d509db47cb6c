"""Readers of data files. They bound the files' sizes and check their contents."""
