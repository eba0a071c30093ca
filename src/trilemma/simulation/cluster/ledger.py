"""Where the hours of the cards went. Every sum is of whole numbers: the states add up to capacity x time exactly."""

from __future__ import annotations

from typing import Any

#: What a run of a job can lose its work or its time to.
CAUSES = ("preemption", "failure", "starting", "moving")


class HoursBook:
    """Units x ticks by state. ``useful`` was done and kept; ``lost`` by cause was done again, or spent on starting again."""

    def __init__(self, capacity_units: int) -> None:
        self.capacity = capacity_units
        self.useful = 0
        self.lost = dict.fromkeys(CAUSES, 0)
        self.down = 0
        self.idle = 0
        self.waiting = 0
        self.fragmented = 0
        self.weighed = 0
        self.weighed_mfu = 0.0
        self.at_ticks = 0

    def passes(self, to_ticks: int, free: int, down: int, stuck: int, waiting: bool) -> None:
        """The time up to ``to_ticks`` with ``free`` units free, of which ``stuck`` fit by count where jobs wait for a place."""
        spent = to_ticks - self.at_ticks
        if spent <= 0:
            return
        fragmented = min(free, stuck)
        self.fragmented += fragmented * spent
        if waiting:
            self.waiting += (free - fragmented) * spent
        else:
            self.idle += (free - fragmented) * spent
        self.down += down * spent
        self.at_ticks = to_ticks

    def ends(self, units: int, kept: int, lost: int, restarting: int, cause: str, restart_cause: str) -> None:
        """A stretch of a job on ``units`` ended: ticks that are kept, lost to ``cause``, and spent on starting again."""
        self.useful += units * kept
        if lost:
            self.lost[cause] += units * lost
        if restarting:
            self.lost[restart_cause] += units * restarting

    def weigh(self, units_ticks: int, mfu: float | None) -> None:
        """Useful time of a job that says how well it uses its cards."""
        if mfu is not None:
            self.weighed += units_ticks
            self.weighed_mfu += units_ticks * mfu

    def total(self) -> int:
        """All states together: capacity x time."""
        return (
            self.useful + sum(self.lost.values()) + self.down + self.idle + self.waiting + self.fragmented
        )  # fmt: skip

    def hours(self, unit_milli: int, ticks: int) -> dict[str, Any]:
        """Hours by state; the whole in GPU-hours."""
        scale = unit_milli * ticks * 3600
        return {
            "capacity": self.capacity * self.at_ticks / scale,
            "useful": self.useful / scale,
            "idle": self.idle / scale,
            "waiting": self.waiting / scale,
            "fragmented": self.fragmented / scale,
            "lost": {name: value / scale for name, value in self.lost.items()},
            "down": self.down / scale,
        }
