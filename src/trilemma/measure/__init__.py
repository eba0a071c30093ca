"""Measurements on this machine that predictions are held against."""
