"""File formats and their vocabulary, for programs that read results; importing this package does not load torch."""
