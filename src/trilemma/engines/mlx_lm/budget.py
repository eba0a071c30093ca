"""MLX-LM's memory on unified memory: weights, caches that grow with their requests, a prompt's step as one lazy graph.

The GPU's working set (``recommendedMaxWorkingSetSize``, raised by ``sysctl iogpu.wired_limit_mb``) is the room: MLX wires up to
it (mlx_lm/generate.py, wired_limit); beyond it macOS pages, and generation crawls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.layer_cache import layer_caches
from trilemma.engines.loading import computing_format, in_dtype
from trilemma.engines.mlx_lm.facts import MlxFacts, for_version
from trilemma.engines.rank_memory import Weights, Widths, context_bytes, expert_bytes, forward_bytes, half_widths
from trilemma.engines.stages import LayerSpan, PipelineStage
from trilemma.engines.start_up import (
    Asked,
    CardMemory,
    Formula,
    Rules,
    SettledStart,
    SizedPool,
    longest_request,
    root_of_squares,
)
from trilemma.engines.table import NOT_RUN, BroadcastPlans
from trilemma.errors import InputError, PlanWarning
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.plans import ServeOptions
from trilemma.quantities import MIB, round_up, show_gib

_LOADED = (None, "mlx", "mxfp4")


@dataclass(frozen=True, kw_only=True, slots=True)
class MlxSettled(SettledStart):
    """``beyond``: layouts that it does not run."""

    facts: MlxFacts
    dtype: Format
    beyond: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class MlxStage(PipelineStage):
    """``rate``: bytes a token; arrays (plans,)."""

    rate: Any


def settle(asked: Asked) -> MlxSettled:
    """Options in force. Raises `InputError` for checkpoints of other toolkits and for several machines."""
    facts, options = for_version(asked.version, date=asked.date, changed=asked.changed), asked.options
    stored = None if asked.model.quantization is None else asked.model.quantization.method
    if stored not in _LOADED:
        raise InputError(
            f"MLX loads checkpoints that mlx_lm.convert made, not {asked.model.name} in {stored}; name one such as"
            " mlx-community/NAME-4bit, or give --precision mlx-4bit"
        )
    card = CardMemory.of(asked.accelerator, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes)
    dtype = computing_format(asked.model, options)
    served = in_dtype(asked.model, dtype)
    unstated, notes = int(facts.coefficients["unstated"]["context"]), []
    context = options.context or min(served.max_positions or unstated, unstated)
    if options.context is None:
        told = f"no longest request stated, and the server has no flag for it: {context:,} tokens assumed"
        notes.append(PlanWarning(code="assumed-context", message=told))
    if options.extra.get("draft-model") or asked.draft is not None:
        notes.append(
            PlanWarning(code="draft-not-counted", message="the draft model's weights and cache are not counted")
        )
    plans = BroadcastPlans.of(
        asked.layout,
        max_seqs=facts.sequences if options.max_seqs is None else options.max_seqs,
        max_batched_tokens=facts.prompt_step if options.max_batched_tokens is None else options.max_batched_tokens,
    )
    several = (plans.tp > 1) | (plans.pp > 1) | (plans.dp > 1) | (plans.ep > 1)
    beyond = plans.refused(several, "MLX-LM is planned on one machine here; leave --tp and --pp at 1")
    return MlxSettled(
        asked=asked, card=card, facts=facts, model=served, plans=plans, context=context,
        kv=cache_format(options, context, facts, dtype), memory_fraction=1.0, warnings=tuple(notes), dtype=dtype, beyond=beyond,
    )  # fmt: skip


def cache_format(options: ServeOptions, context: int, facts: MlxFacts, dtype: Format) -> Format:
    """16 bits, or ``--kv-bits`` in groups once a request is longer than ``--quantized-kv-start``; a plan may name a format."""
    if options.kv_dtype not in (None, "auto", "bf16", "fp16"):
        return catalogue.get(str(options.kv_dtype))
    bits = options.extra.get("kv-bits")
    start = int(options.extra.get("quantized-kv-start", facts.quantised_from))
    if bits is None or context <= start:
        return dtype
    return catalogue.get(f"int{int(bits)}_g{int(options.extra.get('kv-group-size', 64))}_zp16")


def stages(settled: MlxSettled) -> list[MlxStage]:
    """The one device."""
    model, plans, options, none = settled.model, settled.plans, settled.options, np.zeros(settled.plans.shape)
    memory, widths, alone = settled.facts.coefficients, Widths.of(settled.model), np.ones_like(settled.plans.tp)
    span = LayerSpan.of(plans.stages[0], model, plans)
    caches = layer_caches(model.layers, tp=alone, kv_format=settled.kv)
    row = np.minimum(plans.tokens, settled.context) * (settled.dtype.bits / 8)
    peak = forward_bytes(widths, memory, row=row, tp=alone) + expert_bytes(widths, memory, row=row, tp=alone, ep=alone)
    loaded = span.loaded(
        Weights(model, vocab_padding=1), attention_tp=alone, tp=alone, ep=alone, drafts=False, text_only=True
    )
    lines = {
        "weights": loaded["weights"],
        "activations": peak + none,
        "logits": plans.seqs * float(model.vocab) * memory["logits"]["bytes"] + none,
        "state_cache": span.sum_of([cache.state for cache in caches]) * plans.seqs,
        "workspace": _kept_bytes(options) + none,
        "context": context_bytes(memory, ranks=alone, fabric="bridged") + none,
    }
    return [MlxStage(lines=lines, rate=span.sum_of([cache.full + cache.window for cache in caches]))]


def _kept_bytes(options: ServeOptions) -> float:
    """``--prompt-cache-bytes``: caches of finished conversations that the server keeps (``2G``, ``512M`` or bytes)."""
    text = str(options.extra.get("prompt-cache-bytes") or "0").strip().upper().removesuffix("B")
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1:], 1.0)
    try:
        value = float(text.rstrip("KMGT")) * scale
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e18:
        raise InputError(f"--prompt-cache-bytes {text[:60]!r} is not a size such as 4G")
    return value


def _left(settled: MlxSettled, stage: MlxStage) -> Any:
    return settled.card.free_bytes - sum(stage.lines.values())


def room(settled: MlxSettled, found: Sequence[MlxStage]) -> list[Any]:
    """Bytes that the device has room for."""
    return [_left(settled, stage) for stage in found]


def pool(settled: MlxSettled, stage: MlxStage, found: Sequence[MlxStage]) -> SizedPool:
    """What the caches of the requests at once grow to, in steps of 256 tokens: of one reader, where nothing states more."""
    del found
    facts, plans, rate = settled.facts, settled.plans, stage.rate
    context = int(round_up(settled.context, facts.cache_step))
    available = np.where(settled.beyond, NOT_RUN, _left(settled, stage))
    half = half_widths(settled.model, stage.lines, facts.coefficients, known=facts.known)
    spread = root_of_squares(*half.values(), settled.card.uncertain_bytes)
    tokens = np.where(
        rate > 0, np.floor(np.maximum(available, 0) / np.maximum(rate, 1e-9)), float(context) * plans.seqs
    )
    need = context * rate
    readers = 1 if settled.options.max_seqs is None else np.clip(np.floor(tokens / context), 1, plans.seqs)
    used = np.minimum(readers * need, np.maximum(available, 0))
    lines = {**stage.lines, "kv_cache": used}
    return SizedPool(
        lines=lines,
        half={**half, "kv_cache": np.where(used < available, 0.0, spread)},
        outside=("context",),
        inputs={"version": facts.version, "kv": settled.kv.name, "context": context, "sequences": plans.out(plans.seqs),
                "step": plans.out(plans.tokens)},
        budget_bytes=sum(value for name, value in lines.items() if name != "context"),
        available_bytes=available,
        spread_bytes=spread,
        blocks=np.floor(tokens / facts.cache_step),
        block_size=facts.cache_step,
        tokens=tokens,
        concurrency=np.minimum(tokens / context, plans.seqs),
        need_bytes=need,
        rate=rate,
        max_context=longest_request(settled, tokens),
        max_seqs=plans.out(plans.seqs),
        max_batched_tokens=plans.out(plans.tokens),
        load_peak_bytes=lines["weights"] + lines["context"],
        warnings=_warnings(settled, available, need),
    )  # fmt: skip


def _warnings(settled: MlxSettled, available: Any, need: Any) -> list[PlanWarning]:
    """How far the working set may be raised, where it is too small."""
    label = settled.asked.accelerator.label_gb
    if settled.plans.table or float(np.max(need)) <= float(np.max(available)) or not label:
        return []
    most = int(label * 1000**3 / MIB * 0.9)
    told = (
        f"macOS lets the GPU wire {show_gib(settled.card.capacity_bytes)} GiB of {label:g} GB;"
        f" sudo sysctl iogpu.wired_limit_mb={most} raises it until the next start"
    )
    return [PlanWarning(code="wired-limit", message=told)]


_FORMULAS = {
    "weights": Formula(words="every tensor of the language model", source="mlx_lm/utils.py, load_model"),
    "activations": Formula(words="copies · tokens of a step · (hidden, columns, routed rows)", table="forward"),
    "logits": Formula(words="sequences · vocabulary · 4", table="logits"),
    "state_cache": Formula(words="states of recurrent layers · sequences"),
    "workspace": Formula(words="caches of finished conversations, --prompt-cache-bytes", source="mlx_lm/server.py"),
    "context": Formula(words="what Metal keeps for a process", table="context_gib"),
    "kv_cache": Formula(
        words="context in steps of 256 · bytes a token · requests", source="mlx_lm/models/cache.py, KVCache"
    ),
}
RULES = Rules(fraction_of="nothing", formulas=_FORMULAS, settle=settle, stages=stages, room=room, pool=pool)
