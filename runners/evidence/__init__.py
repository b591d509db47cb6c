"""Evidence for finished runs: their repetition."""
