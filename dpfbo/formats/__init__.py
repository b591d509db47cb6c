"""File formats and their vocabulary, for programs that read results; importing them does not load torch."""
