"""Serving simulated: the engines' schedulers, step by step, under traffic that is replayed or drawn."""
