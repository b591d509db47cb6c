"""The computations of problems: training of models, and calls of a user's function in other processes."""
