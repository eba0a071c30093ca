"""Activations counted on this machine, held against the predicted ones."""
