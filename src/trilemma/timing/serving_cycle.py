"""One turn of the requests that share an engine: what each waits for, and the time until all have been answered once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.admission import Admission
from trilemma.timing.coefficients import Coefficients, spec_sheet
from trilemma.timing.queueing import arrivals_ahead_s

#: Short prompts are prefilled together; beyond so many tokens a pass is compute bound and nothing is saved.
_PREFILL_TOKENS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaLoad:
    """What one attention replica is asked to do; numbers or arrays of one shape. ``in_flight`` counts over all replicas."""

    pp: Any
    dp: Any
    offered: Any
    running: Any
    admission: Admission
    in_flight: Any
    osl: Any
    fresh: Any
    cached: Any
    together: Any

    @property
    def running_range(self) -> tuple[Any, Any]:
        """The most and the least that run, as the phases of growing requests fall."""
        least, _, most = self.admission.running_range(self.offered)
        return most, least

    @property
    def saturated(self) -> Any:
        """Whether more are in flight than run in the mean; others find the cache full now and then at most."""
        return self.offered > self.admission.holds

    @property
    def prefills_a_token(self) -> Any:
        """Prompts of others that are prefilled between two tokens of a request: all of them over its output, as far as the
        steps have room."""
        return np.minimum((self.running - 1) / self.osl, self.prefills_room)

    @property
    def prefills_room(self) -> Any:
        """Prompts that a step has room for at most."""
        return np.maximum(self.together, spec_sheet()["mixed_step"]["prompt_tokens"] / np.maximum(self.fresh, 1.0))


def load_of(
    layout: Layout, *, concurrency: Numbers, isl: Numbers, osl: Numbers, admission: Admission, prefix_hit: float
) -> ReplicaLoad:
    dp = np.asarray(layout.dp)
    asked = np.asarray(concurrency, dtype=float)
    offered = np.maximum(asked / dp, 1.0)
    mean = admission.mean_running(offered)
    cached = np.asarray(isl, dtype=float) * prefix_hit
    fresh = np.asarray(isl, dtype=float) - cached
    return ReplicaLoad(
        pp=np.asarray(layout.pp),
        dp=dp,
        offered=offered,
        running=mean,
        admission=admission,
        in_flight=asked,
        osl=np.asarray(osl, dtype=float),
        fresh=fresh,
        cached=cached,
        together=prompts_together(fresh, waiting=mean),
    )


def prompts_together(fresh: Numbers, *, waiting: Numbers = np.inf) -> Any:
    """How many prompts of ``fresh`` tokens run in one pass where ``waiting`` are there to be run.

    Numbers or arrays that broadcast. A definition of ours: beyond 2,048 tokens a pass is bound by its arithmetic.
    """
    return np.clip(np.floor(_PREFILL_TOKENS / np.maximum(fresh, 1.0)), 1.0, waiting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycle:
    """Seconds of one turn, numbers or arrays with one entry per plan.

    ``cycle_s`` passes until a slot is free again. A token takes ``bare_s`` of decode steps and ``mixed_s`` for each prefill of
    others that falls between: ``tpot_s``; all after the first ``decode_s``. The first comes after ``first_s``, wait for a slot
    apart: ``steps_waited_s`` of the step under way, ``queue_s`` of prefills ahead, of which ``bunched_s`` vary.
    """

    cycle_s: Any
    bare_s: Any
    mixed_s: Any
    tpot_s: Any
    decode_s: Any
    first_s: Any
    steps_waited_s: Any
    bunched_s: Any
    queue_s: Any


def cycle_of(
    load: ReplicaLoad, host: Coefficients, *, step_s: Numbers, bare_s: Numbers, prompt_s: Numbers, each_s: Numbers,
    launched_s: Numbers = 0.0, prompt_flops_s: Numbers = 0.0, token_flops_s: Numbers = 0.0, arrivals_per_s: Numbers | None = None,
) -> Cycle:  # fmt: skip
    """The turn of ``load`` where a decode step takes ``step_s``, a token ``bare_s`` of steps, one prompt alone ``prompt_s`` and
    one among others ``each_s`` of prefill, ``launched_s`` of it for launches and the host, which the step that it is mixed into
    pays for both; the FLOPs of one and of a step of all tokens take ``prompt_flops_s`` and
    ``token_flops_s`` at their peaks (seconds; numbers or arrays). Where requests come at ``arrivals_per_s`` to each replica, they
    find those ahead that came a little before (`arrivals_ahead_s`), not a share of all in flight. See `serving_speed` for the
    laws."""
    mixed_s = (each_s - launched_s) * host.interference  # what a prefill adds to the step that it is mixed into
    a_token = load.prefills_a_token
    tpot_s = bare_s + a_token * mixed_s
    decode_s = (load.osl - 1) * tpot_s
    steps_waited_s = host.steps_waited * step_s
    begun_s = prompt_s + steps_waited_s
    if arrivals_per_s is None:
        bunched_s = (load.running - 1) * (host.queue_share * each_s + host.queued_request_s)
    else:
        bunched_s = arrivals_ahead_s(arrivals_per_s, each_s=each_s, step_s=step_s)
    outside_s = (load.osl - 1) * ((load.running - 1) / load.osl - a_token) * mixed_s
    work_s = each_s / load.osl + (1 - 1 / load.osl) * mixed_s  # a prefill is mixed as far as there are steps
    least_s = load.running * work_s + (load.osl - 1) * bare_s
    # part of a prefill hides behind the traffic of the steps, but no FLOPs hide behind others
    least_s = np.maximum(least_s, load.running * prompt_flops_s + (load.osl - 1) * token_flops_s)
    # a free slot is filled at once where requests wait; what each of them takes is the same
    slot_s = np.maximum(begun_s + outside_s + decode_s, least_s)
    own_s = np.maximum(host.request_s + bunched_s + begun_s + outside_s + decode_s, least_s)
    first_s = own_s - decode_s
    queue_s = first_s - host.request_s - begun_s  # with prefills of others that no step had room for
    return Cycle(
        cycle_s=np.where(load.saturated, slot_s, own_s), bare_s=bare_s, mixed_s=mixed_s, tpot_s=tpot_s, decode_s=decode_s,
        first_s=first_s, steps_waited_s=steps_waited_s, bunched_s=bunched_s, queue_s=queue_s,
    )  # fmt: skip
