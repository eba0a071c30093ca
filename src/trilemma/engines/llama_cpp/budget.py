"""llama.cpp's memory: weights, a cache for the whole context at once, compute buffers; what does not fit stays on the host.

Sources: src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp, src/llama-context.cpp, common/fit.cpp. There is no share of the
card: everything is allocated at start, so the card itself is the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp
from trilemma.engines.beside import beside
from trilemma.engines.llama_cpp.cards import card_bytes, host_bytes
from trilemma.engines.llama_cpp.choices import settle
from trilemma.engines.llama_cpp.facts import for_version
from trilemma.engines.llama_cpp.flags import table
from trilemma.engines.llama_cpp.placement import LayerBytes, host_part, parts_of_cards, splits
from trilemma.engines.rank_memory import half_widths
from trilemma.engines.start_up import ledger_of
from trilemma.engines.table import NOT_RUN
from trilemma.errors import Caution, InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import memory_cautions, runtime_total
from trilemma.models.architecture import Model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB, show_gib


def start_up(
    *, model: Model, accelerator: Accelerator, layout: Layout, options: ServeOptions, draft: Draft | None = None,
    version: str | None = None, free_bytes: float | None = None, capacity_bytes: float | None = None,
    date: str | None = None, cards: Sequence[Accelerator] = (),
) -> StartUp:  # fmt: skip
    """What llama.cpp puts on the tightest card, and in ``host_bytes`` what stays on the host.

    ``layout.pp`` cards hold layers in turn (``--split-mode layer``), ``layout.tp`` cards share every matrix (``row``). A table
    of layouts is answered plan by plan: what goes where is decided by whole layers. ``cards`` name each card where their kinds
    differ; they take layers by the memory that is free on each, or as ``--tensor-split`` says. ``options.context`` is the longest
    request; without one the engine's own default, which newer builds cut to what fits. Raises `InputError`.
    """
    if (
        layout.is_table
        or isinstance(options.max_seqs, np.ndarray)
        or isinstance(options.max_batched_tokens, np.ndarray)
    ):
        return _table(
            model=model, accelerator=accelerator, layout=layout, options=options, draft=draft, version=version,
            free_bytes=free_bytes, capacity_bytes=capacity_bytes, date=date,
        )  # fmt: skip
    if not _loads(model, options):
        stored = options.quantization or (model.quantization.method if model.quantization else "")
        raise InputError(
            f"llama.cpp loads GGUF files, not {model.name} in {stored}; name one such as ORG/NAME-GGUF:Q4_K_M,"
            " or give --precision Q4_K_M"
        )
    facts = for_version(version, date=date)
    if int(layout.dp) > 1 or int(layout.cp) > 1:
        raise InputError(f"--dp {layout.dp}: llama.cpp runs one engine; use --pp for layers in turn or --tp for rows")
    number, rows = int(layout.pp), int(layout.tp)
    if (number > 1 and rows > 1) or int(layout.ep) > 1:
        raise InputError("llama.cpp splits a model by layers (--pp) or by rows (--tp), not both, and nothing else")
    if cards and (rows > 1 or len(cards) != number):
        raise InputError("llama.cpp gives cards of several kinds layers in turn; use --pp with as many as --gpu names")
    _check_main_card(options, number * rows)
    kinds = tuple(cards) or (accelerator,) * number
    capacities = [_capacity(card, capacity_bytes, free_bytes) for card in kinds]
    free = [capacity if free_bytes is None else min(capacity, free_bytes) for capacity in capacities]
    pieces = LayerBytes.of(model, options)
    choices, settled, notes = settle(model, options, facts, pieces, rows, free)
    if settled is not options:
        options, pieces = settled, LayerBytes.of(model, settled)
    ends = splits(options, free)
    every = [card_bytes(index, model, pieces, choices, options, facts, ends, rows) for index in range(number)]
    tightest = min(range(number), key=lambda index: free[index] - every[index].total)
    card, capacity = every[tightest], capacities[tightest]
    total = runtime_total(kinds[tightest])
    host = host_bytes(model, pieces, choices, options, facts)
    lines = {
        "weights": np.asarray(card.weights), "vision": np.asarray(card.vision), "kv_cache": np.asarray(card.kv),
        "state_cache": np.asarray(card.states), "activations": np.asarray(card.activations),
        "logits": np.asarray(card.logits), "context": np.asarray(card.context),
    }  # fmt: skip
    half = half_widths(model, lines, facts.coefficients, known=facts.known)
    between = 0.0 if capacity_bytes is not None else (total.interval.high - total.interval.low) / 2
    left = free[tightest] - (card.total - card.kv)
    spread = float(np.sqrt(sum(float(np.square(value)) for value in half.values()) + between**2))
    need = card.kv
    per_token = need / max(choices.cells, 1)
    cautions = [*facts.cautions, *notes]
    if draft is not None and draft.method not in ("ngram", "mtp"):
        cautions.append(
            Caution(code="draft-not-counted", message="the draft model's weights and cache are not counted")
        )
    if host > 0.01 * GIB:
        message = f"{show_gib(host)} GiB stay in the memory of the host"
        cautions.append(Caution(code="on-host", message=message))
    away = host_part(
        model, options, layers=choices.layers, micro_batch=choices.micro_batch, offload_rows=facts.offload_rows
    )
    if away is not None and not away.locked and not accelerator.unified_memory:
        message = f"weights on the host are mapped from the file; {_unmapped(facts.version)} makes prompts faster"
        cautions.append(Caution(code="mapped-weights", message=message))
    fitting = choices.cells if left >= need else int(max(left, 0) / max(per_token, 1e-9)) if need else choices.context
    return StartUp(
        ledger=ledger_of(
            lines, half, formulas=_FORMULAS, outside=("context",), out=lambda value: _number(value),
            inputs={"version": facts.version, "cells": choices.cells, "slots": choices.slots, "layers": choices.layers,
                    "micro_batch": choices.micro_batch, "cache": choices.keys.name, "flash_attention": choices.flash},
        ),
        capacity_bytes=capacity,
        budget_bytes=card.total - card.context,
        pool=KvPool(
            available_bytes=left,
            available_low_bytes=left - spread,
            available_high_bytes=left + spread,
            blocks=fitting,
            block_size=1,
            tokens=min(fitting, choices.cells),
            concurrency=min(fitting, choices.cells) / choices.context,
            need_bytes=need,
            bytes_per_token_per_gpu=per_token,
            max_context=min(fitting, choices.context),
        ),
        memory_fraction=1.0,
        context=choices.context,
        max_seqs=choices.slots,
        max_batched_tokens=choices.micro_batch,
        kv_format=choices.keys.name,
        load_peak_bytes=card.weights + card.vision + card.context,
        version=facts.version,
        cautions=(*cautions, *(() if capacity_bytes else memory_cautions(kinds[tightest]))),
        spread_bytes=spread,
        free_bytes=free_bytes,
        fraction_of="nothing",
        host_bytes=host,
        on_host=away,
        on_cards=parts_of_cards(model, options, layers=choices.layers, ends=ends) if cards else (),
    )  # fmt: skip


def _unmapped(version: str) -> str:
    """The flag by which this build reads a file into buffers."""
    known = table()
    return "--load-mode none" if known.flags["no-mmap"].gone_at(known.at(version)) else "--no-mmap"


def _capacity(card: Accelerator, capacity_bytes: float | None, free_bytes: float | None) -> float:
    capacity = runtime_total(card).interval.value if capacity_bytes is None else float(capacity_bytes)
    if capacity <= 0 or (free_bytes is not None and free_bytes < 0):
        raise InputError(f"a card of {capacity:.0f} bytes with {free_bytes} free cannot be planned for")
    return capacity


def _check_main_card(options: ServeOptions, cards: int) -> None:
    """``--main-gpu`` counts cards from 0. With ``--split-mode none`` it picks one of more cards than the plan takes."""
    main = options.extra.get("main-gpu")
    if main is None or options.extra.get("split-mode") == "none":
        return
    if not 0 <= int(main) < cards:
        raise InputError(f"--main-gpu {main} is none of the {cards} card(s); count from 0 to {cards - 1}")


def _loads(model: Model, options: ServeOptions) -> bool:
    """Whether the weights are as a GGUF may hold them: 16 bits, GGUF's own types, or gpt-oss as published."""
    stored = model.quantization
    return options.quantization is None and (stored is None or stored.method in ("gguf", "mxfp4"))


def _table(**question: Any) -> StartUp:
    """One start-up for each plan of a table, laid beside one another.

    Plans that leave work to the host are none of a table's: their speed follows from what lies where, plan by plan.
    """
    layout, options = question["layout"], question["options"]
    given = (layout.tp, layout.pp, layout.dp, layout.ep, options.max_seqs or 0, options.max_batched_tokens or 0)
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value)) for value in given))
    known: dict[tuple[int, ...], StartUp] = {}
    loads = _loads(question["model"], options)
    if not loads:
        plain = replace(question["model"], quantization=None)
        question, options = {**question, "model": plain}, replace(options, quantization=None)
    rows: list[StartUp] = []
    for row in zip(*(column.tolist() for column in columns), strict=True):
        if row not in known:
            one = replace(options, max_seqs=row[4] or None, max_batched_tokens=row[5] or None)
            laid_out = row[2] == row[3] == 1 and min(row[0], row[1]) == 1
            plan = Layout(tp=row[0], pp=row[1]) if laid_out else Layout(pp=row[0] * row[1])
            known[row] = start_up(**{**question, "layout": plan, "options": one})
            if not laid_out or not loads or known[row].on_host is not None:
                known[row] = _impossible(known[row])
        rows.append(known[row])
    return beside(rows)


def _impossible(start: StartUp) -> StartUp:
    """A plan that llama.cpp does not run never starts."""
    pool = replace(start.pool, available_bytes=NOT_RUN, tokens=0, concurrency=0.0, blocks=0, max_context=0)
    return replace(start, pool=pool)


def _number(value: Any) -> Any:
    figure = float(np.asarray(value))
    return int(figure) if figure.is_integer() else figure


_FORMULAS = {
    "weights": ("tensors of the layers on the card, the output matrix on the last", "src/llama-model.cpp"),
    "vision": ("projector and tower, first card", "tools/mtmd"),
    "kv_cache": ("layers · cells · bytes a token; kept windows: window · slots + micro-batch", "src/llama-kv-cache-iswa.cpp"),
    "state_cache": ("slots · states of one sequence, 32 bits", "src/llama-memory-recurrent.cpp"),
    "activations": ("micro-batch · (cells · mask, hidden, columns), copies for cards that work in turn", "src/llama-context.cpp"),
    "logits": ("micro-batch · vocabulary · 4, on the card with the output matrix", "src/llama-context.cpp"),
    "context": ("CUDA context of the process", "data/coefficients/serving_memory"),
}  # fmt: skip
