"""The training lab: a tiny transformer trained under many low-precision recipes, with the signals that foretell failure."""
