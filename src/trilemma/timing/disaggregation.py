"""Prefill and decode on GPUs of their own: rates of the two pools, the hand-over of the cache, and how many of each to take.

A prompt waits for a free prefill worker, is prefilled without decode steps in its way, its cache travels to a decode worker,
and there it joins a batch whose steps no prefill interrupts. Nothing but these passes, queues and wires is counted: the
degradation factors that planners put on top (aiconfigurator 0.12: 0.9 on prefill, 0.92 on decode, sdk/picking.py) stand for
queues and batches that are not full, which are here themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.collectives import point_to_point_s
from trilemma.timing.forward_pass import decode_step, prefill_pass
from trilemma.timing.launching import launching_s
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.pass_time import PassTime
from trilemma.timing.queueing import shared_queue_wait_s
from trilemma.timing.serving_cycle import prompts_together
from trilemma.timing.speculation import Speculation

#: Share of a pool's time that the requests in line may take before it counts as never catching up.
_MOST_HELD_UP = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillWorker:
    """One engine that prefills, or a table of them: ``alone_s`` is one prompt through all stages, ``each_s`` what a prompt
    costs a busy server, ``servers`` the prompts that are taken at once (attention replicas)."""

    alone_s: Numbers
    each_s: Numbers
    servers: Numbers
    ranks: Numbers
    work: PassTime

    def take(self, chosen: Any) -> PrefillWorker:
        """The rows of a table that a mask or index array names."""
        return replace(
            self, **{name: getattr(self, name)[chosen] for name in ("alone_s", "each_s", "servers", "ranks")}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeWorker:
    """One engine that decodes ``batch`` sequences in each of its ``replicas`` attention replicas, or a table of them.

    ``token_s`` is a token's time, ``decode_s`` that of all tokens after the first, ``received_bytes`` the cache of one prompt
    on each rank, ``ranks`` those of one replica.
    """

    batch: Numbers
    replicas: Numbers
    ranks: Numbers
    step_s: Numbers
    token_s: Numbers
    decode_s: Numbers
    received_bytes: Numbers
    drafting_s: Numbers
    step: PassTime
    steps_per_token: float

    def take(self, chosen: Any) -> DecodeWorker:
        """The rows of a table that a mask or index array names; the parts of the step stay those of the whole."""
        names = ("batch", "replicas", "ranks", "step_s", "token_s", "decode_s", "received_bytes")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    @property
    def rate(self) -> Any:
        """Requests a second that one worker answers at this batch."""
        return np.asarray(self.replicas) * self.batch / self.decode_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """What runs through both pools: ``rate`` requests a second, ``in_flight`` at once (infinite where prefill cannot keep up).

    ``prefill_busy`` and ``slots_used`` are the shares of the prefill workers' time and of the decode workers' slots.
    ``ttft_s`` is ``sure_s``, of which ``transfer_s`` pass on the wire, and ``waited_s`` in the queue.
    """

    rate: Numbers
    ttft_s: Numbers
    sure_s: Numbers
    waited_s: Numbers
    transfer_s: Numbers
    in_flight: Numbers
    prefill_busy: Numbers
    slots_used: Numbers


def prefill_worker(
    work: ModelWork, machine: Machine, layout: Layout, *, isl: Numbers, kv_format: Format, prefix_hit: float = 0.0
) -> PrefillWorker:
    """A prefill engine of ``layout``: short prompts run several to a pass, stages and attention replicas work at once."""
    cached = np.asarray(isl, dtype=float) * prefix_hit
    fresh = np.asarray(isl, dtype=float) - cached
    together = prompts_together(fresh)
    passes: dict[str, Any] = {"tokens": fresh, "cached": cached, "kv_format": kv_format}
    alone = prefill_pass(work, machine, layout, **passes)
    several = prefill_pass(work, machine, layout, prompts=together, **passes)
    return PrefillWorker(
        alone_s=np.maximum(alone.total_s, launching_s(machine, work, fresh)),
        each_s=several.total_s / together / np.asarray(layout.pp),
        servers=np.asarray(layout.dp),
        ranks=np.asarray(layout.tp) * np.asarray(layout.pp),
        work=alone,
    )


def decode_worker(
    work: ModelWork,
    machine: Machine,
    layout: Layout,
    *,
    batch: Numbers,
    isl: Numbers,
    osl: Numbers,
    kv_format: Format,
    received_bytes: Numbers,
    speculation: Speculation | None = None,
) -> DecodeWorker:
    """A decode engine of ``layout`` with ``batch`` sequences in each attention replica; a mean batch may be below one.

    ``received_bytes`` are the `prompt_cache_bytes` that each of its ranks is handed.
    """
    guess = speculation or Speculation()
    step = decode_step(
        work, machine, layout, batch=batch, context=isl + np.asarray(osl, dtype=float) / 2, kv_format=kv_format,
        tokens=guess.verified,
    )  # fmt: skip
    drafting_s, per_token = guess.drafting_s(step, work.layers), 1.0 / guess.tokens_per_step
    token_s = (step.total_s + drafting_s) * per_token
    return DecodeWorker(
        batch=batch,
        replicas=np.asarray(layout.dp),
        ranks=np.asarray(layout.tp) * np.asarray(layout.pp),
        step_s=step.total_s + drafting_s,
        token_s=token_s,
        decode_s=(np.asarray(osl, dtype=float) - 1) * token_s,
        received_bytes=received_bytes,
        drafting_s=drafting_s,
        step=step,
        steps_per_token=per_token,
    )


def prompt_cache_bytes(work: ModelWork, layout: Layout, *, tokens: Numbers, kv_format: Format) -> Any:
    """Bytes of cache and states that a prompt of ``tokens`` leaves on each rank, by the law of each layer's cache.

    Numbers or arrays (plans,). Source: the laws of `trilemma.models.cache_law`, as vLLM's v1/kv_cache_interface.py
    sizes them.
    """
    total: Any = np.float64(0.0)
    for mixer, count in work.mixers:
        for law in mixer.cache_laws(tp=layout.tp, kv_format=kv_format):
            kept = np.minimum(tokens, law.window if law.window is not None else np.inf) / law.stride
            total = total + count * (law.fixed_bytes + law.bytes_per_token * kept)
    return total / np.asarray(layout.pp)


def transfer_s(
    prefill_ranks: Numbers, decode_ranks: Numbers, received_bytes: Numbers, *, machine: Machine, gpus: Numbers
) -> Any:
    """Seconds until the cache of one prompt is with a decode worker, when both pools span ``gpus`` cards.

    Each rank receives ``received_bytes`` and each sender its share of what all ranks receive; the slower end sets the pace.
    The wire is the fast link (or PCIe) where all cards lie within its reach, else the network of each card. The transfer
    starts when the prefill is done: hand-over layer by layer would hide it, and is not counted on.

    Numbers or arrays (plans,). By definition bytes over bandwidth; vLLM's nixl_connector.py starts so.
    """
    sent_bytes = np.asarray(received_bytes) * decode_ranks / prefill_ranks
    return point_to_point_s(np.maximum(received_bytes, sent_bytes), gpus, machine.wires)


def flow(
    prefill: PrefillWorker,
    decode: DecodeWorker,
    *,
    prefill_workers: Numbers,
    decode_workers: Numbers,
    machine: Machine,
    gpus: Numbers,
    slots: Numbers = np.inf,
    arriving: bool = False,
) -> Flow:
    """Both pools while every decode worker runs its ``batch``: rates, first token, requests in flight.

    ``TTFT = request + wait for a prefill worker + prefill + transfer + steps waited · step``. The wait is that of Poisson
    arrivals before the workers that there are, plus what requests that come in bunches find ahead of them: ``queue`` of the
    others in flight for each worker, as in interleaved serving (none where they
    come one by one, ``arriving``). A prefill worker is busy until its prompt is computed, or
    sent where the wire is the slower of the two. ``slots`` are what one attention replica of a decode worker holds; a slot
    is taken from the transfer on.
    """
    host = machine.coefficients
    moved_s = transfer_s(prefill.ranks, decode.ranks, decode.received_bytes, machine=machine, gpus=gpus)
    rate = decode.rate * decode_workers
    service_s = np.maximum(prefill.each_s, moved_s)
    servers = np.asarray(prefill.servers) * prefill_workers
    busy = rate * service_s / servers
    joining_s = moved_s + host.steps_waited * decode.step_s
    sure_s = host.request_s + prefill.alone_s + joining_s
    together_s = 0.0 * service_s if arriving else host.queue_share * service_s + host.queued_request_s
    ahead_s = together_s / servers
    queue_s = shared_queue_wait_s(busy, servers, service_s)
    alone = rate * (sure_s + queue_s + decode.decode_s)
    held_up = np.minimum(rate * ahead_s, _MOST_HELD_UP)
    in_flight = np.where(alone > servers, (alone - held_up * servers) / (1.0 - held_up), alone)
    waited_s = queue_s if arriving else queue_s + np.maximum(in_flight - servers, 0.0) * ahead_s
    return Flow(
        rate=rate,
        ttft_s=sure_s + waited_s,
        sure_s=sure_s,
        waited_s=waited_s,
        transfer_s=moved_s,
        in_flight=in_flight,
        prefill_busy=busy,
        slots_used=decode.batch * (1 + joining_s / decode.decode_s) / slots,
    )
