"""What the ledger holds of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.errors import InputError, shorten

RunStatus = Literal["running", "done", "crashed"]
STATUSES: tuple[RunStatus, ...] = ("running", "done", "crashed")
#: Characters of a name, figures of a run, and bytes of its configuration.
_LONGEST, _MOST_FIGURES = 200, 1000
MOST_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRun:
    """One run. Times are seconds since 1970 (UTC). ``figures`` are its results, units in their names; ``config`` what was
    asked for; ``machine`` what it ran on; ``estimate`` the document of what was expected, where it was planned."""

    name: str
    started_s: float
    id: int = 0
    ended_s: float | None = None
    status: RunStatus = "done"
    model: str = ""
    gpu: str = ""
    gpus: int | None = None
    why: str = ""
    git: str = ""
    tags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    estimate: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("name", "model", "gpu", "git"):
            text = getattr(self, what)
            if not isinstance(text, str) or len(text) > _LONGEST or any(ord(sign) < 32 for sign in text):
                raise InputError(
                    f"`{what}` {shorten(str(text))!r} of a run is no line of at most {_LONGEST} characters"
                )
        if not self.name.strip():
            raise InputError("a run without a name is not found again; name it")
        if self.status not in STATUSES:
            raise InputError(f"`status` {shorten(str(self.status))!r} is not known; use {', '.join(STATUSES)}")
        if len(self.figures) > _MOST_FIGURES:
            raise InputError(f"{len(self.figures):,} figures are more than a run holds; give at most {_MOST_FIGURES}")
        for name, value in self.figures.items():
            checked_figure(name, value)

    @property
    def seconds(self) -> float | None:
        return None if self.ended_s is None else self.ended_s - self.started_s


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvent:
    """Something that happened during a run: a checkpoint, a restart, a drop of the clock."""

    at_s: float
    what: str


def checked_figure(name: str, value: Any) -> float:
    """``value`` as a finite number. Raises `InputError` for what is none, or for a name that cannot be asked for."""
    if (
        not isinstance(name, str)
        or not name.replace("_", "").replace(".", "").replace("-", "").isalnum()
        or len(name) > 80
    ):
        raise InputError(f"a figure named {shorten(str(name))!r}: use letters, digits, _ . and -, such as step_s")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"figure {name} {shorten(str(value))!r} is not a finite number")
    return float(value)
