"""Fitting coefficients to measured tables: re-runnable, so that a number in a data file can be made again."""
