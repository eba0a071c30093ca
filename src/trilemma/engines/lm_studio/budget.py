"""LM Studio's memory: llama.cpp's, with the context that it loads and the part of the layers that ``--gpu`` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trilemma.engines.llama_cpp import budget as llama
from trilemma.engines.lm_studio.facts import LmStudioFacts, for_version
from trilemma.engines.start_up import Asked, Rules, SettledStart, SizedPool
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.quantities import show_count


@dataclass(frozen=True, kw_only=True, slots=True)
class LmStudioSettled(SettledStart):
    """``inside``: the llama.cpp that runs the model."""

    facts: LmStudioFacts
    inside: llama.LlamaCppSettled


def layers_on_cards(word: Any, depth: int) -> int | None:
    """Of ``depth + 1`` layers those that ``--gpu`` puts on cards: max, off, or a share; None: as LM Studio sees fit.

    Raises `InputError`.
    """
    text = str(word if word is not None else "auto").strip().lower()
    if text == "auto":
        return None
    if text in ("max", "off"):
        return depth + 1 if text == "max" else 0
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(f"--gpu {shorten(text)!r} is none of max, off, auto and a share from 0 to 1")
    return round(share * (depth + 1))


def settle(asked: Asked) -> LmStudioSettled:
    """The llama.cpp that LM Studio starts. Raises `InputError`, also for checkpoints of MLX."""
    facts, model, options = (
        for_version(asked.version, date=asked.date, changed=asked.changed),
        asked.model,
        asked.options,
    )
    if int(asked.layout.tp) > 1:
        raise InputError("LM Studio puts layers on cards in turn (--pp) and splits nothing else")
    if model.quantization is not None and model.quantization.method == "mlx":
        raise InputError(f"LM Studio runs {model.name} in MLX; ask for mlx_lm.server --model {model.name}")
    notes = []
    context = min(options.context or facts.context, model.max_positions or options.context or facts.context)
    if options.context is None:
        message = f"no --context-length: {show_count(context)} tokens, its own default"
        notes.append(PlanWarning(code="assumed-context", message=message))
    count = layers_on_cards(options.extra.get("gpu"), len(model.layers))
    slots = facts.slots if options.max_seqs is None else int(options.max_seqs)
    extra = {name: value for name, value in options.extra.items() if name != "gpu"}
    placed = {"fit": "on"} if count is None else {"fit": "off", "n-gpu-layers": str(count)}
    given = replace(
        options, context=context, max_seqs=slots, extra={"flash-attn": "on", "kv-unified": slots > 1, **extra, **placed}
    )
    inside = llama.settle(replace(asked, options=given, version=facts.build, date=None))
    return LmStudioSettled(
        asked=asked, card=inside.card, facts=replace(facts, coefficients=inside.facts.coefficients), model=inside.model,
        plans=inside.plans, context=inside.context, kv=inside.kv, memory_fraction=1.0,
        warnings=(*notes, *inside.warnings), inside=inside,
    )  # fmt: skip


def pool(settled: LmStudioSettled, tightest: llama.LlamaCppCard, found: Sequence[llama.LlamaCppCard]) -> SizedPool:
    """llama.cpp's pool, under LM Studio's version."""
    sized = llama.pool(settled.inside, tightest, found)
    warnings = [one for one in sized.warnings if one.code != "mapped-weights"]
    return replace(sized, warnings=warnings, inputs={**sized.inputs, "version": settled.facts.version})


RULES = Rules(
    fraction_of="nothing",
    formulas=llama.RULES.formulas,
    settle=settle,
    stages=lambda settled: llama.cards(settled.inside),
    room=lambda settled, found: llama.room(settled.inside, found),
    pool=pool,
    table=llama.by_rows,
)
