"""Joules over a window of time: power as the cards tell it, sampled beside a run, summed, and refused where it does not hold."""
