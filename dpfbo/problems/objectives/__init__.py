"""The objectives behind problems: models that are trained, and calls of a user's function in processes."""
