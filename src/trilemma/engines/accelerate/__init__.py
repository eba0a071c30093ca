"""Accelerate: ``config`` reads its YAML file, ``write`` writes it."""
