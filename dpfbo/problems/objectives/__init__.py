"""Training of the problems' models, and calls of a user's function in other processes."""
