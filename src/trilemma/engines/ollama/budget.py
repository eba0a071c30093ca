"""Ollama's memory: llama.cpp's, under Ollama's own defaults and its own way of laying layers on cards.

Sources: server/sched.go, server/routes.go, llm/llama_server.go, llm/server.go and llm/memory.go of ollama/ollama.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.engines.layer_cache import layer_caches
from trilemma.engines.llama_cpp import budget as llama
from trilemma.engines.llama_cpp.cards import cache_bytes, cache_format, card_bytes
from trilemma.engines.llama_cpp.choices import least
from trilemma.engines.ollama.facts import OllamaFacts, for_version, rung
from trilemma.engines.ollama.placement import Sizes, batch_that_fits, graph_bytes, layers_by_estimate
from trilemma.engines.start_up import Asked, CardMemory, Rules, SettledStart, SizedPool
from trilemma.errors import InputError, PlanWarning
from trilemma.quantities import GIB, MIB, counted, show_count


@dataclass(frozen=True, kw_only=True, slots=True)
class OllamaSettled(SettledStart):
    """``inside``: the llama.cpp that runs the model."""

    facts: OllamaFacts
    inside: llama.LlamaCppSettled


def settle(asked: Asked) -> OllamaSettled:
    """The llama.cpp that Ollama starts: context, slots, batch and layers filled in. Raises `InputError`."""
    if int(asked.layout.tp) > 1:
        raise InputError("Ollama puts layers on cards in turn (--pp) and splits nothing else")
    facts = for_version(asked.version, date=asked.date, changed=asked.changed)
    model, options = asked.model, asked.options
    kinds = tuple(asked.cards) or (asked.accelerator,) * int(asked.layout.pp)
    cards = [CardMemory.of(kind, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes) for kind in kinds]
    default = rung(facts.context, sum(card.capacity_bytes for card in cards) / GIB)
    context = min(options.context or default, model.max_positions or _ENDLESS)
    notes = []
    if options.context is None:
        message = (
            f"no num_ctx and no OLLAMA_CONTEXT_LENGTH: {show_count(context)} tokens, its own default for these cards"
        )
        notes.append(PlanWarning(code="assumed-context", message=message))
    fused = bool({"all", model.family} & set(facts.fuses_attention)) and _fuses(asked)
    fits = {} if facts.places_by == "server" else {"fit": "off"}
    extra: dict[str, Any] = {"flash-attn": "on" if fused else "off", **options.extra, **fits}
    kv = options.kv_dtype
    if kv is not None and str(extra["flash-attn"]) == "off" and facts.places_by != "server":
        message = f"OLLAMA_KV_CACHE_TYPE {kv} needs OLLAMA_FLASH_ATTENTION=1: the cache stays in f16"
        notes.append(PlanWarning(code="cache-type-ignored", message=message))
        kv = None
    tried = (
        (1,) if model.family in facts.alone else facts.slots if options.max_seqs is None else (int(options.max_seqs),)
    )
    for slots in tried:
        batch = int(options.max_batched_tokens or _batch(asked, facts, cards, context * slots, fused=fused))
        given = replace(
            options,
            context=context,
            max_seqs=slots,
            max_batched_tokens=batch,
            kv_dtype=kv,
            extra={**extra, "kv-unified": False},
        )
        inside, note = _placed(replace(asked, options=given, version=facts.build, date=None), facts, cards)
        if note is None or slots == tried[-1]:
            break
    return OllamaSettled(
        asked=asked, card=cards[0], facts=replace(facts, coefficients=inside.facts.coefficients), model=inside.model,
        plans=inside.plans, context=inside.context, kv=inside.kv, memory_fraction=1.0,
        warnings=(*notes, *dict.fromkeys((*inside.warnings, *([note] if note else [])))), inside=inside,
    )  # fmt: skip


_ENDLESS = 1 << 40


def _fuses(asked: Asked) -> bool:
    """Whether every card fuses attention: on CUDA from compute capability 7.0, not 7.2 (ml/device.go)."""
    capabilities = [one.compute_capability for one in tuple(asked.cards) or (asked.accelerator,)]
    return all(one is None or (one >= 7.0 and one != 7.2) for one in capabilities)


def _batch(asked: Asked, facts: OllamaFacts, cards: Sequence[CardMemory], cells: int, *, fused: bool) -> int:
    """Tokens of a pass: by the cells of the cache, as far as weights and a 16-bit cache leave room for it."""
    wanted, limits = rung(facts.batch, cells), facts.coefficients["batches"]
    if not fused and asked.accelerator.compute_capability is not None:
        return min(wanted, int(limits["least"]))
    f16 = layer_caches(asked.model.layers, tp=1, kv_format=cache_format(None, ""))
    predicted = float(sum(tensor.bytes for tensor in asked.model.tensors))
    predicted += cells * sum(float(one.full + one.window) for one in f16)
    available = sum(card.free_bytes for card in cards)
    return batch_that_fits(
        wanted, predicted, available, room=limits["room"], least=int(limits["least"]), share=limits["share"]
    )


def _placed(
    asked: Asked, facts: OllamaFacts, cards: Sequence[CardMemory]
) -> tuple[llama.LlamaCppSettled, PlanWarning | None]:
    """llama.cpp with layers laid as Ollama lays them, and what must be said where not all are on cards."""
    options, depth = asked.options, len(asked.model.layers)
    aside = float(options.extra.get("gpu-overhead", 0))
    free = [max(card.free_bytes - aside, 0.0) for card in cards]
    if facts.places_by == "server":
        found = _settled(asked, facts)
        return _packed(found, cards, facts), next((one for one in found.warnings if one.code.endswith("on-host")), None)
    everything = _settled(
        replace(asked, options=replace(options, extra={**options.extra, "n-gpu-layers": "all"})), facts
    )
    stated = options.extra.get("n-gpu-layers")
    if stated is not None:
        count = min(int(stated), depth + 1)
        layers, whole = min(count, depth), count > depth
    elif facts.places_by == "estimate":
        layers, whole = _estimated(everything, facts, free)
    else:
        layers, whole = _tried(everything, facts, free)
    if whole:
        return _packed(everything, cards, facts), None
    pieces, choices = everything.pieces, everything.choices
    held = replace(pieces, head=0.0, embedding=pieces.embedding + (0.0 if asked.model.tied_embeddings else pieces.head))
    placed = replace(everything, pieces=held, choices=replace(choices, layers=layers + 1 if layers else 0))
    how = "stated" if stated is not None else f"by its own {facts.places_by}"
    message = f"{counted(layers, 'layer')} of {depth + 1} on the cards ({how}), the others stay on the host"
    return placed, PlanWarning(code="layers-on-host", message=message)


def _settled(asked: Asked, facts: OllamaFacts) -> llama.LlamaCppSettled:
    """llama.cpp as it is asked for; families of Ollama's own engine keep their windows, those of all slots together."""
    found = llama.settle(asked)
    if found.model.family not in facts.windows:
        return found
    kept = replace(found.facts, windows_kept=True)
    return replace(found, facts=kept, choices=replace(found.choices, shared=True))


def _packed(found: llama.LlamaCppSettled, cards: Sequence[CardMemory], facts: OllamaFacts) -> llama.LlamaCppSettled:
    """All layers on the first card where it holds them with room to spare: Ollama takes the fewest cards that do."""
    share = facts.coefficients["set_aside"]["single_card_share"]
    if (
        len(cards) == 1
        or found.asked.options.extra.get("sched-spread")
        or found.choices.layers <= len(found.model.layers)
    ):
        return found
    alone = replace(found, cards=cards[:1], ends=[1.0])
    (whole,) = llama.cards(alone)
    if float(whole.total) > share * cards[0].free_bytes:
        return found
    return replace(found, ends=[1.0] * len(cards))


def _estimated(found: llama.LlamaCppSettled, facts: OllamaFacts, free: Sequence[float]) -> tuple[int, bool]:
    pieces, choices, model = found.pieces, found.choices, found.model
    kv = [
        sum(cache_bytes(model, choices, found.facts, found.asked.options, at, at + 1))
        for at in range(len(model.layers))
    ]
    sizes = Sizes.of(model, cells=choices.cells, batch=choices.micro_batch)
    layers = np.asarray(pieces.layers) + np.asarray(kv)
    head = pieces.head if pieces.head else pieces.embedding
    return layers_by_estimate(
        layers.tolist(),
        head,
        graph_bytes(model.family, sizes, sum(kv)),
        free,
        aside=_minimum(facts),
        first=pieces.vision,
    )


def _minimum(facts: OllamaFacts) -> float:
    return float(facts.coefficients["set_aside"]["minimum_mib"]) * MIB


def _tried(found: llama.LlamaCppSettled, facts: OllamaFacts, free: Sequence[float]) -> tuple[int, bool]:
    """As many layers as leave every card what Ollama sets aside, by the sizes that a trial run allocates."""
    aside, pieces, choices, depth = _minimum(facts), found.pieces, found.choices, len(found.model.layers)

    def fits(layers: int, head: bool) -> bool:
        held = pieces if head else replace(pieces, head=0.0)
        tried = replace(choices, layers=layers + 1)
        for index, room in enumerate(free):
            one = card_bytes(index, found.model, held, tried, found.placed, found.facts, found.ends, 1)
            if one.total - one.context + aside > room:
                return False
        return True

    if fits(depth, True):
        return depth, True
    return depth - least(depth, lambda off: fits(depth - off, False)), False


def pool(settled: OllamaSettled, tightest: llama.LlamaCppCard, found: Sequence[llama.LlamaCppCard]) -> SizedPool:
    """llama.cpp's pool, under Ollama's version."""
    sized = llama.pool(settled.inside, tightest, found)
    told = "weights on the host are mapped from the file; PARAMETER use_mmap false in a Modelfile makes prompts faster"
    warnings = [replace(one, message=told) if one.code == "mapped-weights" else one for one in sized.warnings]
    return replace(
        sized,
        warnings=warnings,
        inputs={**sized.inputs, "version": settled.facts.version, "build": settled.facts.build},
    )


RULES = Rules(
    fraction_of="nothing",
    formulas=llama.RULES.formulas,
    settle=settle,
    stages=lambda settled: llama.cards(settled.inside),
    room=lambda settled, found: llama.room(settled.inside, found),
    pool=pool,
    table=llama.by_rows,
)
