"""Axolotl: ``read`` reads its YAML file."""
