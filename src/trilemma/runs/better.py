"""Which way a figure gets better, by the words of its name."""

from __future__ import annotations

from typing import Literal

from trilemma.errors import InputError

Better = Literal["higher", "lower"]
#: What more of is better, and what less of is: the first that a figure's name holds decides.
_HIGHER = ("tokens_per_s", "per_s", "mfu", "hfu", "goodput", "throughput", "hit_rate", "tokens_per_hour", "efficiency")
_LOWER = (
    "_ms", "_s", "latency", "ttft", "tpot", "itl", "loss", "_bytes", "_gib", "usd", "joules", "watt", "failures", "errors",
    "perplexity", "preemptions", "comm_fraction", "bubble",
)  # fmt: skip


def better_of(figure: str, stated: Better | None = None) -> Better:
    """``stated``, or what the name says. Raises `InputError` where it says neither."""
    if stated is not None:
        return stated
    name = figure.lower()
    if any(word in name for word in _HIGHER):
        return "higher"
    if any(word in f"{name}" for word in _LOWER):
        return "lower"
    raise InputError(f"which way {figure!r} gets better is not known; say `better` higher or lower")


def gain(before: float, after: float, better: Better) -> float:
    """How much better ``after`` is, as a share of ``before``: 0.05 is 5 % better, whichever way that is."""
    if before == 0:
        return 0.0 if after == 0 else float("inf") * (1 if (after > 0) == (better == "higher") else -1)
    change = after / before - 1
    return change if better == "higher" else -change
