"""Watching the numerics of any PyTorch model while it trains: hooks, alarms, the first bad operator."""

from trilemma.precision.watch.findings import WatchFinding
from trilemma.precision.watch.watch import Watch, watch_numerics

__all__ = ["Watch", "WatchFinding", "watch_numerics"]
