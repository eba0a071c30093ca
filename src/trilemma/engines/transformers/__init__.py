"""Runs on the Trainer of Transformers, TRL and Accelerate.

``run`` is what they state, ``read`` reads the command, ``write`` the files.
"""
