"""The start-up of every engine, once: card → what is in force → stages → the tightest → its pool → the answer.

An engine fills the hooks of `Rules`; one path serves a single plan and tables of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from trilemma.engines.base import FractionOf, KvPool, StartUp
from trilemma.engines.coefficients import ChangedRows
from trilemma.engines.draft import Drafting, with_draft
from trilemma.engines.facts import Facts
from trilemma.engines.loading import as_stored
from trilemma.engines.stages import PipelineStage, tightest
from trilemma.engines.table import BroadcastPlans
from trilemma.errors import InputError, PlanWarning
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import host_share_bytes, memory_warnings, runtime_total
from trilemma.memory.ledger import Ledger, Line
from trilemma.models.architecture import Model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import Numbers
from trilemma.timing.host_weights import HostPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One engine to be started, as `trilemma.engines.engine.Engine.start_up` is asked for it."""

    model: Model
    accelerator: Accelerator
    layout: Layout
    options: ServeOptions
    draft: Draft | None = None
    version: str | None = None
    free_bytes: float | None = None
    capacity_bytes: float | None = None
    date: str | None = None
    cards: Sequence[Accelerator] = ()
    changed: ChangedRows | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CardMemory:
    """The memory of one card in bytes: its total, what is free of it, the half-width (90 %) of a total that is inferred,
    and the total of a card that shares memory with its host (0: none), of which the system takes what it likes.
    """

    capacity_bytes: float
    free_bytes: float
    uncertain_bytes: float
    shared_bytes: float
    warnings: tuple[PlanWarning, ...]

    @classmethod
    def of(cls, accelerator: Accelerator, *, capacity_bytes: float | None, free_bytes: float | None) -> CardMemory:
        """``capacity_bytes`` replaces the runtime total, ``free_bytes`` is what others leave. Raises `InputError`."""
        total = runtime_total(accelerator).interval
        capacity = total.value if capacity_bytes is None else float(capacity_bytes)
        if capacity <= 0 or (free_bytes is not None and free_bytes < 0):
            raise InputError(f"a card of {capacity:.0f} bytes with {free_bytes} free cannot be planned for")
        return cls(
            capacity_bytes=capacity,
            free_bytes=capacity - host_share_bytes(capacity, accelerator)
            if free_bytes is None
            else min(capacity, free_bytes),
            uncertain_bytes=0.0 if capacity_bytes is not None else (total.high - total.low) / 2,
            shared_bytes=capacity if accelerator.unified_memory else 0.0,
            warnings=() if capacity_bytes else memory_warnings(accelerator),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledStart:
    """What is in force before memory is counted: facts, the model as served, plans, options filled in.

    An engine adds what its own hooks need.
    """

    asked: Asked
    card: CardMemory
    facts: Facts
    model: Model
    plans: BroadcastPlans
    context: int
    kv: Format
    memory_fraction: Any
    warnings: tuple[PlanWarning, ...]
    budget_checked_at_start: bool = False

    @property
    def options(self) -> ServeOptions:
        return self.asked.options


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedPool:
    """What the tightest stage holds and what its cache comes to; bytes and counts as arrays (plans,).

    ``lines`` are all of the ledger, ``kv_cache`` among them, with half-widths ``half``; those ``outside`` lie beside the budget.
    ``available_bytes`` are left for the cache, give or take ``spread_bytes``, and hold ``tokens`` in ``blocks``; ``need_bytes``
    serve one request of full context (``checked_bytes`` the engine asks for before it starts, where that is more), ``rate`` are
    bytes for one more token of it up to ``grows_to`` tokens. ``inputs`` are shown beside formulas,
    ``pool_inputs`` beside that of the cache. ``max_seqs`` and ``max_batched_tokens`` are the options in force.
    """

    lines: Mapping[str, Any]
    half: Mapping[str, Any]
    outside: Sequence[str]
    inputs: Mapping[str, Any]
    budget_bytes: Any
    available_bytes: Any
    spread_bytes: Any
    blocks: Any
    block_size: Numbers
    tokens: Any
    concurrency: Any
    need_bytes: Any
    rate: Any
    max_context: Any
    max_seqs: Numbers
    max_batched_tokens: Numbers
    load_peak_bytes: Any
    least_blocks: Any = 0
    checked_bytes: Any = 0
    grows_to: Any = np.inf
    pool_inputs: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[PlanWarning] = ()
    card: CardMemory | None = None
    host_bytes: float = 0
    on_host: HostPart | None = None
    on_cards: tuple[tuple[frozenset[str], frozenset[int]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """A line's rule in words, and where it is from: a ``source``, or that of the coefficients of a ``table``."""

    words: str
    source: str = ""
    table: str = ""


I = TypeVar("I", bound=SettledStart)  # noqa: E741
G = TypeVar("G", bound=PipelineStage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules(Generic[I, G]):
    """How one engine starts.

    ``settle`` fills in what the command leaves open; ``stages`` counts every stage (or card) by itself; ``room`` says what
    each leaves for the cache, by which the tightest is chosen; ``pool`` makes of that stage, all stages beside it, what the
    engine prints. ``again`` asks anew where the engine changes its options by the answer, ``table`` answers tables of plans
    for an engine whose hooks take single ones. Lines ``shown`` stand in the ledger even when they hold nothing.
    """

    fraction_of: FractionOf
    formulas: Mapping[str, Formula]
    settle: Callable[[Asked], I]
    stages: Callable[[I], Sequence[G]]
    room: Callable[[I, Sequence[G]], Sequence[Any]]
    pool: Callable[[I, G, Sequence[G]], SizedPool]
    again: Callable[[I, StartUp], Asked | None] | None = None
    table: Callable[[Asked, Callable[[Asked], StartUp]], StartUp | None] | None = None
    shown: Sequence[str] = ("weights", "kv_cache", "activations", "context")


def start_up(rules: Rules[I, G], asked: Asked) -> StartUp:
    """What the engine of ``rules`` does with a card's memory when it starts, per GPU of the tightest rank."""
    if rules.table is not None:
        rows = rules.table(asked, lambda one: start_up(rules, one))
        if rows is not None:
            return rows
    settled = rules.settle(asked)
    stages = rules.stages(settled)
    chosen = tightest(stages, rules.room(settled, stages), settled.plans.shape)
    answer = _answer(rules, settled, rules.pool(settled, chosen, stages))
    other = None if rules.again is None else rules.again(settled, answer)
    return answer if other is None else start_up(rules, other)


def _answer(rules: Rules[I, G], settled: I, pool: SizedPool) -> StartUp:
    plans, out, card = settled.plans, settled.plans.out, pool.card or settled.card
    return StartUp(
        ledger=_ledger(rules, settled, pool),
        capacity_bytes=card.capacity_bytes,
        budget_bytes=out(pool.budget_bytes),
        pool=KvPool(
            available_bytes=out(pool.available_bytes),
            available_low_bytes=out(pool.available_bytes - pool.spread_bytes),
            available_high_bytes=out(pool.available_bytes + pool.spread_bytes),
            blocks=out(pool.blocks),
            block_size=out(np.broadcast_to(pool.block_size, plans.shape)),
            tokens=out(pool.tokens),
            concurrency=out(pool.concurrency),
            need_bytes=out(np.broadcast_to(pool.need_bytes, plans.shape)),
            bytes_per_token_per_gpu=out(pool.rate),
            max_context=out(pool.max_context),
            least_blocks=out(np.broadcast_to(pool.least_blocks, plans.shape)),
            checked_bytes=out(np.broadcast_to(pool.checked_bytes, plans.shape)),
            grows_to=out(np.broadcast_to(pool.grows_to, plans.shape)),
        ),
        memory_fraction=settled.memory_fraction,
        context=settled.context,
        max_seqs=pool.max_seqs,
        max_batched_tokens=pool.max_batched_tokens,
        kv_format=settled.kv.name,
        load_peak_bytes=out(pool.load_peak_bytes),
        version=settled.facts.version,
        warnings=(*settled.facts.warnings, *settled.warnings, *pool.warnings, *card.warnings),
        spread_bytes=out(np.broadcast_to(pool.spread_bytes, plans.shape)),
        free_bytes=settled.asked.free_bytes,
        budget_checked_at_start=settled.budget_checked_at_start,
        fraction_of=rules.fraction_of,
        host_bytes=pool.host_bytes,
        on_host=pool.on_host,
        on_cards=pool.on_cards,
    )


def _ledger(rules: Rules[I, G], settled: I, pool: SizedPool) -> Ledger:
    """The lines with their bounds; lines of nothing are left out."""
    out, found = settled.plans.out, []
    for name, value in pool.lines.items():
        if name not in rules.shown and not np.any(np.asarray(value) > 0):
            continue
        width = pool.half.get(name, np.zeros(np.shape(value)))
        formula = rules.formulas[name]
        found.append(
            Line(
                name=name,
                bytes=out(value),
                low=out(np.maximum(value - width, 0)),
                high=out(value + width),
                budget="outside" if name in pool.outside else "inside",
                formula=formula.words,
                inputs={**pool.inputs, **(pool.pool_inputs if name == "kv_cache" else {})},
                source=str(settled.facts.coefficients[formula.table]["source"]) if formula.table else formula.source,
            )
        )
    return Ledger(lines=tuple(found))


def as_loaded(
    asked: Asked, quantizes_while_loading: Mapping[str, str]
) -> tuple[Drafting, Model, tuple[PlanWarning, ...]]:
    """(the model with what drafts for it, the model as stored, what must be said of both)."""
    stored, warnings = as_stored(asked.model, asked.options, quantizes_while_loading)
    drafting = with_draft(stored, asked.draft)
    return drafting, stored, (*warnings, *drafting.warnings)


def longest_request(settled: SettledStart, tokens: Any) -> Any:
    """The longest request that a pool of ``tokens`` admits: no longer than the model's own length, or the one asked for."""
    longest = max(settled.context, settled.asked.model.max_positions or 0)
    return np.minimum(tokens, longest).astype(np.int64)


def root_of_squares(*parts: Any) -> Any:
    """Half-widths taken as independent, as one."""
    return np.sqrt(sum(np.square(part) for part in parts))
