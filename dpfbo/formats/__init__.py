"""The formats of files, and the words in them, for readers of results; importing them does not load torch."""
