"""What an engine did in its time, by kinds of steps, and how busy that kept its cards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trilemma.estimate.timed_plan import TimedPlan
from trilemma.simulation.serving.policies.policy import Chunks
from trilemma.timing.forward_pass import decode_step, prefill_pass
from trilemma.timing.power import Activity, drawn_share, passes_activity, power_terms

#: Prompt tokens of a step that are told apart: so many kinds to each doubling.
_AN_OCTAVE = 4


class BusyTime:
    """Steps of one engine by the sequences that decode in them and, about, by the prompt tokens that they take: for each kind
    its seconds, steps, past tokens of a sequence, and prompt chunks with their new and cached tokens, all summed.
    ``running_s`` is the requests under way times the seconds that they are."""

    __slots__ = ("kinds", "running_s")

    def __init__(self) -> None:
        self.kinds: dict[tuple[int, int], list[float]] = {}
        self.running_s = 0.0

    def decoded(self, sequences: int, context_sum: float, steps: int, seconds: float, *, running: int) -> None:
        """``steps`` in which ``sequences``, together ``context_sum`` tokens long at first, get a token each."""
        self.running_s += running * seconds
        context = context_sum / sequences + (steps - 1) / 2
        self._add((sequences, 0), seconds, steps, steps * context, 0, 0, 0)

    def mixed(self, sequences: int, context_sum: float, chunks: Chunks, seconds: float, *, running: int) -> None:
        """A step that decodes ``sequences`` and prefills ``chunks``, of which nothing is counted as computed yet."""
        self.running_s += running * seconds
        count = new = cached = 0
        for request, tokens in chunks:
            count, new, cached = count + 1, new + tokens, cached + request.computed
        kind = 1 + int(_AN_OCTAVE * math.log2(new)) if new else 0
        self._add((sequences, kind), seconds, 1, context_sum / max(sequences, 1), count, new, cached)

    def _add(self, kind: tuple[int, int], *more: float) -> None:
        sums = self.kinds.get(kind)
        if sums is None:
            self.kinds[kind] = list(more)
            return
        for at, one in enumerate(more):
            sums[at] += one


def activity_of(timed: TimedPlan, engines: Sequence[BusyTime], seconds: float) -> Activity:
    """What the cards of ``engines`` alike do in the mean of ``seconds``, each for as long: idle where nothing is under way.

    No step draws more than the limit of its board: work beyond that counts at the rate that the limit leaves it.
    """
    sums: dict[tuple[int, int], Any] = {}
    for one in engines:
        for kind, more in one.kinds.items():
            sums[kind] = np.asarray(more, dtype=float) + sums.get(kind, 0.0)
    if not sums:
        return Activity(compute=0.0, memory=0.0)
    sequences = np.array([kind[0] for kind in sums], dtype=float)
    took, steps, context, chunks, new, cached = np.array(list(sums.values())).T
    shared: dict[str, Any] = {"kv_format": timed.kv_format}
    guess = timed.speculation
    step = decode_step(
        timed.work, timed.machine, timed.layout, batch=np.maximum(sequences, 1.0), context=context / steps,
        tokens=1 if guess is None else guess.verified, **shared,
    )  # fmt: skip
    prompt = prefill_pass(
        timed.work, timed.machine, timed.layout, tokens=new / np.maximum(chunks, 1.0) + (chunks == 0),
        cached=cached / np.maximum(chunks, 1.0), prompts=np.maximum(chunks / steps, 1.0), **shared,
    )  # fmt: skip
    per_token = 1.0 if guess is None else 1.0 / guess.tokens_per_step
    parts = ((step, np.where(sequences > 0, per_token, 0.0)), (prompt, np.where(chunks > 0, 1.0, 0.0)))
    each = passes_activity(parts, timed.machine, timed.work, took / steps)
    each = each.at_rate(1.0 / np.maximum(drawn_share(each, power_terms(timed.machine.accelerator)), 1.0))
    share = took / (seconds * len(engines))
    return Activity(
        **{
            name: float(np.sum(np.broadcast_to(getattr(each, name), share.shape) * share))
            for name in ("compute", "memory", "gathered", "gathered_narrow")
        }
    )
