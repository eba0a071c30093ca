"""Curves of speed over power caps and clocks, as measured against what the law of clocks says."""
