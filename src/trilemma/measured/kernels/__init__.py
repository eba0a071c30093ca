"""Measured kernels: tables of operators, their judgement, the numbers fitted to them."""
