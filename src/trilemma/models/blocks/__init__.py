"""Tensors of the building blocks that model families share."""
