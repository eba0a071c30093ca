"""Measured serving: start-ups and their memory, speeds, and the runs of one deployment."""
