"""Unsloth: unsloth-cli.py, and scripts whose calls say what they train."""
