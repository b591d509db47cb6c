"""The formats of files, and the words in them: what readers of results may import, as it loads no torch."""
