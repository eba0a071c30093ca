"""LMDeploy's memory at start-up: a share of what weights leave, the rest of it for the pass, logits and graphs.

``pool = share · (free − weights)`` (TurboMind: src/turbomind/turbomind.cc, CreateEngine, earlier BlockManager.cc), less what the
PyTorch backend sets aside for a prefill before (lmdeploy/pytorch/engine/executor/base.py). Until 0.2.1 the share was of the card.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trilemma.engines.lmdeploy.facts import cache_format, for_version, policy_of
from trilemma.engines.lmdeploy.stage import LmdeploySettled, LmdeployStage, stages
from trilemma.engines.loading import computing_format, in_dtype
from trilemma.engines.rank_memory import half_widths, pool_unknown
from trilemma.engines.start_up import (
    Asked,
    CardMemory,
    Formula,
    Rules,
    SizedPool,
    as_loaded,
    longest_request,
    root_of_squares,
)
from trilemma.engines.table import NOT_RUN, BroadcastPlans
from trilemma.errors import InputError, PlanWarning

#: Lines that are there before the share is taken, and those that live in what the share leaves.
BEFORE = ("weights", "vision", "workspace", "state_cache", "context")
AFTER = ("activations", "logits", "cuda_graphs")


def settle(asked: Asked) -> LmdeploySettled:
    """Options in force. Raises `InputError` for shares, backends and layouts that the engine does not take."""
    facts = for_version(asked.version, date=asked.date, changed=asked.changed)
    options, layout = asked.options, asked.layout
    backend = str(options.extra.get("backend", facts.backend))
    if backend not in ("turbomind", "pytorch"):
        raise InputError(f"--backend {backend[:60]!r} is none of LMDeploy's; use turbomind or pytorch")
    policy = policy_of(options.kv_dtype)
    if backend == "turbomind" and policy in ("16", "17"):
        raise InputError(
            f"--quant-policy {policy}: TurboMind caches in 16 bits, INT8 (8) or INT4 (4); take one of these or --backend pytorch"
        )
    card = CardMemory.of(asked.accelerator, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes)
    drafting, _, notes = as_loaded(asked, {})
    dtype = computing_format(drafting.model, options)
    served = in_dtype(drafting.model, dtype)
    plans = BroadcastPlans.of(
        layout,
        max_seqs=facts.batch_on(asked.accelerator.id) if options.max_seqs is None else options.max_seqs,
        max_batched_tokens=facts.prefill_tokens if options.max_batched_tokens is None else options.max_batched_tokens,
    )
    beyond = plans.refused(
        plans.pp > 1, "LMDeploy cuts a model by tensors and experts (--tp, --dp, --ep), not by layers"
    )
    fraction = facts.memory_fraction if options.memory_fraction is None else float(options.memory_fraction)
    if fraction <= 0:
        raise InputError(f"--cache-max-entry-count {fraction:g} is no share; give one above 0 and below 1, such as 0.8")
    if asked.draft is not None:
        notes = (
            *notes,
            PlanWarning(code="draft-not-counted", message="the draft model's weights and cache are not counted"),
        )
    unstated = facts.coefficients["unstated"]["context"]
    return LmdeploySettled(
        asked=asked, card=card, facts=facts, model=served, plans=plans,
        context=options.context or served.max_positions or unstated, kv=cache_format(options.kv_dtype, dtype),
        memory_fraction=fraction, warnings=notes, dtype=dtype, block=options.block_size or facts.block_size,
        turbomind=backend == "turbomind", beyond=beyond,
    )  # fmt: skip


def _unused(settled: LmdeploySettled, stage: LmdeployStage) -> Any:
    """What is free of the card when the cache is sized."""
    return settled.card.free_bytes - sum(stage.lines[name] for name in BEFORE)


def room(settled: LmdeploySettled, found: Sequence[LmdeployStage]) -> list[Any]:
    """Tokens that the stage has room for."""
    return [_unused(settled, stage) / stage.rate for stage in found]


def pool(settled: LmdeploySettled, stage: LmdeployStage, found: Sequence[LmdeployStage]) -> SizedPool:
    """Blocks of the share that the cache takes; a whole number above 1 is a count of blocks (until 0.14)."""
    del found
    facts, plans, block, rate = settled.facts, settled.plans, settled.block, stage.rate
    unused, fraction = _unused(settled, stage), settled.memory_fraction
    if fraction >= 1:
        available = fraction * rate * block
    elif facts.share_of == "card":
        available = np.where(unused > 0, fraction * settled.card.capacity_bytes, unused)
    else:
        available = np.where(unused > 0, fraction * unused, unused)
    available = np.where(settled.beyond, NOT_RUN, available)
    blocks = np.floor(np.maximum(available, 0) / (rate * block))
    tokens = blocks * block
    available = np.where(available > 0, tokens * rate, available)
    half = half_widths(settled.model, stage.lines, facts.coefficients, known=facts.known)
    memory = facts.coefficients
    spread = min(fraction, 1.0) * root_of_squares(
        *(half.get(name, 0.0) for name in BEFORE),
        settled.card.uncertain_bytes,
        memory["spread"]["unified_memory_relative"] * settled.card.shared_bytes,
        pool_unknown(settled.model, memory, unused),
    )
    return SizedPool(
        lines={**stage.lines, "kv_cache": np.maximum(available, 0)},
        half={**half, "kv_cache": spread},
        outside=("context", *AFTER),
        inputs={"version": facts.version, "backend": "turbomind" if settled.turbomind else "pytorch", "kv": settled.kv.name,
                "context": settled.context, "block": block, "max_batch_size": plans.out(plans.seqs),
                "max_prefill_token_num": plans.out(plans.tokens)},
        budget_bytes=sum(stage.lines[name] for name in BEFORE if name != "context") + np.maximum(available, 0),
        available_bytes=available,
        spread_bytes=spread,
        blocks=blocks,
        block_size=block,
        tokens=tokens,
        concurrency=tokens / settled.context,
        need_bytes=(settled.context if settled.options.context is not None else facts.least_blocks * block) * rate,
        rate=np.where(rate > 1e-6, rate, 0.0),
        max_context=longest_request(settled, tokens),
        max_seqs=plans.out(plans.seqs),
        max_batched_tokens=plans.out(plans.tokens),
        load_peak_bytes=sum(stage.lines[name] for name in ("weights", "vision", "context")),
        warnings=_warnings(settled, tokens),
    )  # fmt: skip


def _warnings(settled: LmdeploySettled, tokens: Any) -> list[PlanWarning]:
    if settled.plans.table or not 0 < float(np.max(tokens)) < settled.context:
        return []
    told = f"the pool holds {int(np.max(tokens)):,} tokens: a session is cut to that, below the {settled.context:,} asked for"
    return [PlanWarning(code="pool-below-context", message=told)]


_FORMULAS = {
    "weights": Formula(words="sum over tensors of bytes · ceil(units / ranks) / units"),
    "vision": Formula(words="tensors of the vision tower"),
    "context": Formula(words="CUDA context, workspaces and communicators", table="context_gib"),
    "workspace": Formula(
        words="(max_prefill_token_num + sequences) · vocabulary · bytes, set aside by the PyTorch backend",
        source="lmdeploy/pytorch/engine/executor/base.py, _get_runtime_size",
    ),
    "state_cache": Formula(
        words="(max_batch_size + 2) · states of one request", source="executor/base.py, _get_state_cache_mem"
    ),
    "activations": Formula(
        words="copies · max_prefill_token_num · (hidden, columns / ranks, routed rows)", table="forward"
    ),
    "logits": Formula(words="sequences · vocabulary / ranks · 4", table="logits"),
    "cuda_graphs": Formula(words="fixed + sizes · layers · c, PyTorch backend", table="graphs"),
    "kv_cache": Formula(
        words="share · (free − weights − what is set aside), in blocks",
        source="turbomind.cc, CreateEngine; executor/base.py",
    ),
}
RULES = Rules(fraction_of="free after loading", formulas=_FORMULAS, settle=settle, stages=stages, room=room, pool=pool)
