"""The verdict as one sentence, with the figures that decide it."""

from __future__ import annotations

from trilemma.engines.base import Stage, StartUp
from trilemma.quantities import GIB, counted, show_count, show_gib


def reason(stage: Stage, start: StartUp) -> str:
    """Why start-up ends at ``stage``: what is needed against what there is, and the option that would move it."""
    return _REASONS[stage](start)


def _ok(start: StartUp) -> str:
    pool = start.pool
    if not pool.bytes_per_token_per_gpu:
        return f"weights take {_weights(start)} of {show_gib(float(start.capacity_bytes))} GiB per GPU"
    requests = f"{float(pool.concurrency):,.2f} requests of {counted(start.context, 'token')} at once"
    return f"the cache pool holds {counted(float(pool.tokens), 'token')}, {requests}"


def _oom_load(start: StartUp) -> str:
    free = start.capacity_bytes if start.free_bytes is None else start.free_bytes
    if start.free_bytes is not None and float(start.budget_bytes) > start.free_bytes >= float(start.load_peak_bytes):
        return (
            f"the engine refuses to start: it wants {show_gib(float(start.budget_bytes))} GiB"
            f" ({start.memory_fraction:g} of the card), other processes leave {show_gib(float(free))} GiB"
        )
    return (
        f"loading needs {show_gib(float(start.load_peak_bytes))} GiB per GPU, the card has {show_gib(float(free))} GiB"
    )


def _oom_profile(start: StartUp) -> str:
    left, need = float(start.pool.available_bytes), float(start.pool.need_bytes)
    if left >= need:
        return (
            f"{show_gib(left)} GiB are left for a KV cache of {show_gib(need)}, give or take"
            f" {show_gib(float(start.spread_bytes))} of what lies beside it and of the card: too close to count on"
        )
    inside = float(start.budget_bytes) - float(start.pool.available_bytes)
    return (
        f"weights ({_weights(start)} GiB), activations and buffers take {inside / GIB:,.2f} GiB of a budget of"
        f" {show_gib(float(start.budget_bytes))} GiB: nothing is left for the KV cache"
    )


def _kv_too_small(start: StartUp) -> str:
    pool = start.pool
    need = max(float(pool.need_bytes), float(pool.checked_bytes))
    if float(pool.available_bytes) >= need:
        return (
            f"a state block each is needed for {counted(float(pool.least_blocks), 'sequence')} and the pool has"
            f" {show_count(float(pool.blocks))}; lower the most sequences"
        )
    whose = " per GPU,"
    if need > float(pool.need_bytes):
        whose = (
            f" in all layers, which this version compares with the pool of one stage (a stage needs"
            f" {show_gib(float(pool.need_bytes))} GiB):"
        )
    return (
        f"one request of {counted(start.context, 'token')} needs {show_gib(need)} GiB of KV cache{whose}"
        f" {show_gib(float(pool.available_bytes))} GiB are left: enough for {counted(float(pool.max_context), 'token')}"
    )


def _oom_capture(start: StartUp) -> str:
    outside = float(start.ledger.total("outside"))
    left = float(start.capacity_bytes) - float(start.budget_bytes)
    if left < 0:
        return (
            f"a KV cache of {show_gib(float(start.pool.available_bytes))} GiB beside weights and buffers takes"
            f" {show_gib(float(start.budget_bytes))} GiB per GPU, the card has {show_gib(float(start.capacity_bytes))} GiB"
        )
    return (
        f"CUDA graphs and context take {outside / GIB:,.2f} GiB beside the budget, and a memory fraction of"
        f" {start.memory_fraction:g} leaves {left / GIB:,.2f} GiB for them"
    )


def _oom_runtime(start: StartUp) -> str:
    left = max(float(start.capacity_bytes) - float(start.ledger.total()), 0.0)
    return f"it starts, but only {show_gib(left)} GiB of the card stay free for what serving allocates later"


def _weights(start: StartUp) -> str:
    return show_gib(
        sum(float(line.bytes) for line in start.ledger if line.name in ("weights", "adapter", "draft_model", "vision"))
    )


_REASONS = {
    "ok": _ok,
    "oom_load": _oom_load,
    "oom_profile": _oom_profile,
    "kv_too_small": _kv_too_small,
    "oom_capture": _oom_capture,
    "oom_runtime": _oom_runtime,
}
