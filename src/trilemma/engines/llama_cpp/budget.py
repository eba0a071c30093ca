"""llama.cpp's memory: weights, a cache for the whole context at once, compute buffers; what does not fit stays on the host.

Sources: src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp, src/llama-context.cpp, common/fit.cpp. There is no share of the
card: everything is allocated at start, so the card itself is the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.engines.base import StartUp
from trilemma.engines.beside import beside
from trilemma.engines.draft import with_draft
from trilemma.engines.llama_cpp.cards import Choices, card_bytes, host_bytes
from trilemma.engines.llama_cpp.choices import settle as settle_choices
from trilemma.engines.llama_cpp.facts import LlamaCppFacts, for_version
from trilemma.engines.llama_cpp.flags import table
from trilemma.engines.llama_cpp.placement import LayerBytes, host_part, parts_of_cards, splits
from trilemma.engines.loading import in_dtype, lies_in_gguf
from trilemma.engines.rank_memory import half_widths
from trilemma.engines.stages import PipelineStage
from trilemma.engines.start_up import Asked, CardMemory, Formula, Rules, SettledStart, SizedPool, root_of_squares
from trilemma.engines.table import NOT_RUN, BroadcastPlans
from trilemma.errors import InputError, PlanWarning
from trilemma.formats import catalogue
from trilemma.models.architecture import Model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB, show_gib
from trilemma.timing.host_weights import HostPart


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaCppSettled(SettledStart):
    """``cards``: one or more, in turn; ``placed`` are the options with the experts that are left on the host."""

    facts: LlamaCppFacts
    cards: Sequence[CardMemory]
    rows: int
    choices: Choices
    placed: ServeOptions
    pieces: LayerBytes
    ends: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaCppCard(PipelineStage):
    """One card: its place in the row, and the bytes of all that it holds, cache among it."""

    place: Any
    total: Any


def settle(asked: Asked) -> LlamaCppSettled:
    """Slots, context and layers of a start. ``layout.pp`` cards hold layers in turn (``--split-mode layer``), ``layout.tp``
    cards share every matrix (``row``); cards of several kinds take layers by the memory that is free on each, or as
    ``--tensor-split`` says. Without a context the engine's own default, which newer builds cut to what fits. Raises `InputError`.
    """
    model, options, layout = asked.model, asked.options, asked.layout
    if not _loads(model, options):
        stored = options.quantization or (model.quantization.method if model.quantization else "")
        raise InputError(
            f"llama.cpp loads GGUF files, not {model.name} in {stored}; name one such as ORG/NAME-GGUF:Q4_K_M,"
            " or give --precision Q4_K_M"
        )
    facts = for_version(asked.version, date=asked.date, changed=asked.changed)
    drafting = with_draft(model, asked.draft)
    model = _as_converted(drafting.model if drafting.has_layers else _without_drafts(model))
    number, rows = _check_layout(layout, asked)
    _check_main_card(options, number * rows)
    kinds = tuple(asked.cards) or (asked.accelerator,) * number
    cards = [CardMemory.of(kind, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes) for kind in kinds]
    free = [card.free_bytes for card in cards]
    pieces = LayerBytes.of(model, options)
    choices, placed, notes = settle_choices(model, options, facts, pieces, rows, free)
    if placed is not options:
        pieces = LayerBytes.of(model, placed)
    return LlamaCppSettled(
        asked=asked, card=cards[0], facts=facts, model=model, context=choices.context, kv=choices.keys, memory_fraction=1.0,
        plans=BroadcastPlans.of(layout, max_seqs=choices.slots, max_batched_tokens=choices.micro_batch),
        warnings=(*drafting.warnings, *notes, *_capped(model, choices.context, options)),
        cards=cards, rows=rows, choices=choices, placed=placed, pieces=pieces, ends=splits(placed, free),
    )  # fmt: skip


def _capped(model: Model, context: int, options: ServeOptions) -> list[PlanWarning]:
    """That requests end at the model's positions, where a slot has room for more and nothing stretches them."""
    positions = model.max_positions
    stretched = any(name in options.extra for name in ("rope-scaling", "rope-scale", "override-kv"))
    if positions is None or context <= positions or stretched:
        return []
    message = (
        f"a slot of {context:,} tokens is capped at the model's own {positions:,}; its cache is allocated all the same"
    )
    return [PlanWarning(code="context-beyond-model", message=message)]


def _as_converted(model: Model) -> Model:
    """A float32 checkpoint is converted to float16 unless asked otherwise (convert_hf_to_gguf.py, ``--outtype auto``)."""
    plain = model.dtype.bits > 16 and model.quantization is None
    return in_dtype(model, catalogue.get("fp16")) if plain else model


def _without_drafts(model: Model) -> Model:
    """``model`` without the layers that could draft: they are not loaded."""
    kept = tuple(tensor for tensor in model.tensors if tensor.part != "mtp")
    return replace(model, mtp_layers=(), tensors=kept)


def _check_layout(layout: Layout, asked: Asked) -> tuple[int, int]:
    """(cards in turn, cards that share every matrix). Raises `InputError` for what the engine does not run."""
    if int(layout.dp) > 1 or int(layout.cp) > 1:
        raise InputError(f"--dp {layout.dp}: llama.cpp runs one engine; use --pp for layers in turn or --tp for rows")
    number, rows = int(layout.pp), int(layout.tp)
    if (number > 1 and rows > 1) or int(layout.ep) > 1:
        raise InputError("llama.cpp splits a model by layers (--pp) or by rows (--tp), not both, and nothing else")
    if asked.cards and (rows > 1 or len(asked.cards) != number):
        raise InputError("llama.cpp gives cards of several kinds layers in turn; use --pp with as many as --gpu names")
    return number, rows


def cards(settled: LlamaCppSettled) -> list[LlamaCppCard]:
    """Every card by itself."""
    found = []
    for place in range(len(settled.cards)):
        card = card_bytes(
            place,
            settled.model,
            settled.pieces,
            settled.choices,
            settled.placed,
            settled.facts,
            settled.ends,
            settled.rows,
        )
        lines = {
            "weights": card.weights, "vision": card.vision, "draft_model": card.draft, "kv_cache": card.kv,
            "state_cache": card.states, "activations": card.activations, "logits": card.logits, "context": card.context,
        }  # fmt: skip
        found.append(LlamaCppCard(lines=lines, place=place, total=card.total))
    return found


def room(settled: LlamaCppSettled, found: Sequence[LlamaCppCard]) -> list[Any]:
    """What each card has free beside all that it holds."""
    return [card.free_bytes - one.total for card, one in zip(settled.cards, found, strict=True)]


def pool(settled: LlamaCppSettled, tightest: LlamaCppCard, found: Sequence[LlamaCppCard]) -> SizedPool:
    """The cache of the whole context on the tightest card, and how much of it fits."""
    del found
    lines, choices, facts = tightest.lines, settled.choices, settled.facts
    card = settled.cards[int(tightest.place[0])]
    half = half_widths(settled.model, lines, facts.coefficients, known=facts.known)
    need = lines["kv_cache"]
    left = card.free_bytes - (tightest.total - need)
    per_token = need / max(choices.cells, 1)
    held = np.where(need > 0, np.floor(np.maximum(left, 0) / np.maximum(per_token, 1e-9)), choices.context)
    fitting = np.where(left >= need, choices.cells, held)
    tokens = np.minimum(fitting, choices.cells)
    host = host_bytes(settled.model, settled.pieces, choices, settled.placed, facts)
    away = host_part(
        settled.model, settled.placed, layers=choices.layers, micro_batch=choices.micro_batch,
        offload_rows=facts.offload_rows,
    )  # fmt: skip
    return SizedPool(
        lines=lines,
        half=half,
        outside=("context",),
        inputs={"version": facts.version, "cells": choices.cells, "slots": choices.slots, "layers": choices.layers,
                "micro_batch": choices.micro_batch, "cache": choices.keys.name, "flash_attention": choices.flash},
        budget_bytes=tightest.total - lines["context"],
        available_bytes=left,
        spread_bytes=root_of_squares(*half.values(), card.uncertain_bytes),
        blocks=fitting,
        block_size=1,
        tokens=tokens,
        concurrency=tokens / choices.context,
        need_bytes=need,
        rate=per_token,
        max_context=np.minimum(fitting, choices.context),
        max_seqs=choices.slots,
        max_batched_tokens=choices.micro_batch,
        load_peak_bytes=lines["weights"] + lines["vision"] + lines["draft_model"] + lines["context"],
        warnings=_warnings(settled, host, away),
        card=card,
        host_bytes=host,
        on_host=away,
        on_cards=_on_cards(settled),
    )  # fmt: skip


def _on_cards(settled: LlamaCppSettled) -> tuple[tuple[frozenset[str], frozenset[int]], ...]:
    if not settled.asked.cards:
        return ()
    return parts_of_cards(settled.model, settled.placed, layers=settled.choices.layers, ends=settled.ends)


def _warnings(settled: LlamaCppSettled, host: float, away: HostPart | None) -> list[PlanWarning]:
    found = []
    if host > 0.01 * GIB:
        message = f"{show_gib(host)} GiB stay in the memory of the host"
        found.append(PlanWarning(code="on-host", message=message))
    if settled.placed.text_only and settled.pieces.vision > 0:
        message = f"images need --mmproj FILE: the vision tower of {show_gib(settled.pieces.vision)} GiB is not loaded"
        found.append(PlanWarning(code="tower-not-loaded", message=message))
    if away is not None and not away.locked and not settled.asked.accelerator.unified_memory:
        remedy = f"{_unmapped(settled.facts.version)} makes prompts faster"
        found.append(
            PlanWarning(code="mapped-weights", message=f"weights on the host are mapped from the file; {remedy}")
        )
    return found


def _unmapped(version: str) -> str:
    """The flag by which this build reads a file into buffers."""
    known = table()
    return "--load-mode none" if known.flags["no-mmap"].gone_at(known.at(version)) else "--no-mmap"


def _check_main_card(options: ServeOptions, cards: int) -> None:
    """``--main-gpu`` counts cards from 0. With ``--split-mode none`` it picks one of more cards than the plan takes."""
    main = options.extra.get("main-gpu")
    if main is None or options.extra.get("split-mode") == "none":
        return
    if not 0 <= int(main) < cards:
        raise InputError(f"--main-gpu {main} is none of the {cards} card(s); count from 0 to {cards - 1}")


def _loads(model: Model, options: ServeOptions) -> bool:
    """Whether the weights are as a GGUF may hold them."""
    stored = model.quantization
    return options.quantization is None and lies_in_gguf(None if stored is None else stored.method)


def by_rows(asked: Asked, start: Callable[[Asked], StartUp]) -> StartUp | None:
    """One start-up for each plan of a table, laid beside one another: what goes where is decided by whole layers.

    Plans that leave work to the host are none of a table's: their speed follows from what lies where, plan by plan.
    """
    layout, options = asked.layout, asked.options
    if not (layout.is_table or any(isinstance(n, np.ndarray) for n in (options.max_seqs, options.max_batched_tokens))):
        return None
    stated = [0 if number is None else number for number in (options.max_seqs, options.max_batched_tokens)]
    given = (layout.tp, layout.pp, layout.dp, layout.ep, *stated)
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value)) for value in given))
    known: dict[tuple[int, ...], StartUp] = {}
    loads = _loads(asked.model, options)
    if not loads:
        asked = replace(asked, model=replace(asked.model, quantization=None))
        options = replace(options, quantization=None)
    rows: list[StartUp] = []
    for row in zip(*(column.tolist() for column in columns), strict=True):
        if row not in known:
            one = replace(options, max_seqs=row[4] or None, max_batched_tokens=row[5] or None)
            laid_out = row[2] == row[3] == 1 and min(row[0], row[1]) == 1
            plan = Layout(tp=row[0], pp=row[1]) if laid_out else Layout(pp=row[0] * row[1])
            known[row] = start(replace(asked, layout=plan, options=one))
            if not laid_out or not loads or known[row].on_host is not None:
                known[row] = _impossible(known[row])
        rows.append(known[row])
    return beside(rows)


def _impossible(start: StartUp) -> StartUp:
    """A plan that llama.cpp does not run never starts."""
    pool = replace(start.pool, available_bytes=NOT_RUN, tokens=0, concurrency=0.0, blocks=0, max_context=0)
    return replace(start, pool=pool)


_FORMULAS = {
    "weights": Formula(
        words="tensors of the layers on the card, the output matrix on the last", source="src/llama-model.cpp"
    ),
    "vision": Formula(words="projector and tower, first card", source="tools/mtmd"),
    "draft_model": Formula(
        words="layers that draft, their cache in 16 bits · cells, logits of a micro-batch",
        source="common/speculative.cpp; compute buffer of 490 MiB in ggml-org/llama.cpp pull request 22673",
    ),
    "kv_cache": Formula(
        words="layers · cells · bytes a token; kept windows: window · slots + micro-batch",
        source="src/llama-kv-cache-iswa.cpp",
    ),
    "state_cache": Formula(words="slots · states of one sequence, 32 bits", source="src/llama-memory-recurrent.cpp"),
    "activations": Formula(
        words="micro-batch · (cells · mask, hidden, columns), copies for cards that work in turn",
        source="src/llama-context.cpp",
    ),
    "logits": Formula(
        words="micro-batch · vocabulary · 4, on the card with the output matrix", source="src/llama-context.cpp"
    ),
    "context": Formula(words="CUDA context of the process", table="context_gib"),
}
RULES = Rules(
    fraction_of="nothing", formulas=_FORMULAS, settle=settle, stages=cards, room=room, pool=pool, table=by_rows
)
