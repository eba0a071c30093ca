"""Watching the numerics of any PyTorch model while it trains: hooks, alarms, the first bad operator."""

from trilemma.precision.watch.findings import Finding
from trilemma.precision.watch.watch import Watch, watch_numerics

__all__ = ["Finding", "Watch", "watch_numerics"]
