"""Short words of a simulation of a cluster, as values: failures, slowdowns, the control plane, the job that is asked about."""

from __future__ import annotations

from trilemma.errors import InputError, shorten
from trilemma.simulation.cluster.event_loop import NodeFailures
from trilemma.simulation.cluster.jobs import ticks
from trilemma.simulation.cluster.nodes import LEVELS
from trilemma.simulation.cluster.policies.paced_kueue import ControlPlane
from trilemma.simulation.cluster.start_forecast import AskedJob

#: Hours between failures and until a node is back: shorter ones are no cluster, and never end.
_SHORTEST_H, _LONGEST_H = 0.01, 1e9


def asked_job(words: str) -> AskedJob:
    """GPUs, queue and limit of the job whose wait is asked for."""
    gpus, _, rest = words.partition(":")
    queue, _, hours = rest.partition(":")
    try:
        many, limit = float(gpus), float(hours) * 3600 if hours else None
    except ValueError:
        many, limit = 0.0, None
    if not 0 < many < 1e6 or (limit is not None and not 0 < limit < 1e9):
        raise InputError(
            f"`wait` {shorten(words)!r} is not GPUS or GPUS:QUEUE, such as 64, 64:research or 64:research:12 (hours)"
        )
    return AskedJob(many, queue, limit)


def control_plane(words: str | None) -> ControlPlane | None:
    """Writes a second and at once; None where decisions cost nothing."""
    if words is None:
        return None
    try:
        writes, burst = (float(one) for one in words.split(":"))
    except ValueError:
        raise InputError(f"`control_plane` {shorten(words)!r} is not WRITES:BURST, such as 50:100") from None
    if not (0 < writes <= 1e6 and 0 <= burst <= 1e6):
        raise InputError(f"`control_plane` {shorten(words)!r} is out of range; give such as 50:100")
    return ControlPlane(writes_per_s=writes, burst=int(burst))


def node_failures(words: str | None, seed: int) -> NodeFailures | None:
    """Hours between failures of a node and until it is back."""
    if words is None:
        return None
    try:
        mtbf, repair = (float(one) for one in words.split(":"))
    except ValueError:
        raise InputError(f"`failures` {shorten(words)!r} is not MTBF:REPAIR in hours, such as 2000:12") from None
    if not (mtbf > 0 and repair > 0):
        raise InputError(f"`failures` {shorten(words)!r}: give hours above 0, such as 2000:12")
    if not all(_SHORTEST_H <= one <= _LONGEST_H for one in (mtbf, repair)):
        raise InputError(
            f"`failures` {shorten(words)!r} is out of range; give hours of {_SHORTEST_H:g} to {_LONGEST_H:g}, such as 2000:12"
        )
    return NodeFailures(mtbf_ticks=ticks(mtbf * 3600), repair_ticks=ticks(repair * 3600), seed=seed)


def slowdowns(words: str | None) -> dict[str, float]:
    """How much longer work takes by the level that a job spans."""
    return _by_level(words, "slowdown", "cluster=1.2")


def oversubscriptions(words: str | None) -> dict[str, float]:
    """How many times narrower the network is that a job crosses, by the level that it spans; one number is of the whole
    cluster."""
    if words is not None and "=" not in words:
        words = f"cluster={words}"
    return _by_level(words, "oversubscription", "rack=1,cluster=4")


def _by_level(words: str | None, name: str, example: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in (words or "").split(",") if words else ():
        level, _, factor = part.partition("=")
        known = ("node", *LEVELS, "cluster")
        if level not in known:
            raise InputError(f"`{name}` {shorten(part)!r}: no such level; use {', '.join(known)}")
        try:
            found[level] = float(factor)
        except ValueError:
            raise InputError(f"`{name}` {shorten(part)!r} is not LEVEL=X, such as {example}") from None
        if not 1 <= found[level] <= 1000:
            raise InputError(f"`{name}` {shorten(part)!r} is out of range; give 1 or more")
    return found
