"""What a search is asked, and what each of its parts needs to answer: the engines that start, and a count of those that lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trilemma import engines
from trilemma.engines import traits_of
from trilemma.engines.base import StartUp
from trilemma.estimate.number_formats import as_computed
from trilemma.estimate.serving_load import admission_of
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.hardware.cluster import Cluster
from trilemma.plans import EngineRef, Layout, ServeOptions
from trilemma.quantities import counted
from trilemma.search.precisions import WeightPrecision
from trilemma.search.space import BATCHES, Constraints, Layouts, joined, take
from trilemma.search.targets import Margin, margin_of
from trilemma.timing import Machine, ModelWork, model_work
from trilemma.timing.admission import Admission
from trilemma.timing.intervals import pools_spread, speed_spread
from trilemma.timing.serving_terms import ServingTerms
from trilemma.workloads import Serving

#: Whether prefill and decode share engines, have pools of their own, or both are searched.
PoolsAsked = Literal["aggregated", "disaggregated", "both"]
#: Columns of a table beside the index of the choice; degrees of a plan's engines, then those of its prefill pool.
DEGREES = ("tp", "pp", "dp", "ep")
PREFILL_DEGREES = tuple(f"prefill_{name}" for name in DEGREES)
COUNTS = (*DEGREES, "replicas", *PREFILL_DEGREES, "prefill_replicas", "gpus")
FIGURES = ("requests", "ttft_s", "held_ttft_s", "tpot_s", "per_gpu", "per_user", "limit", "used")
PlanColumns = dict[str, NDArray[Any]]
_CENTRAL = Margin()
#: Deviations of a Poisson number that are rarely passed.
_RARELY = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatChoice:
    """What cannot be an array: a precision of the weights, a format of the cache, and slots where an engine has such."""

    precision: WeightPrecision
    kv_dtype: str
    slots: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchQuestion:
    """What a search is asked: the cards, the load (lengths stated), what is settled, and the engine.

    ``free`` searches the number of GPUs too: ``cluster`` then is one node of them. A target is met where it holds with
    ``confidence`` (None: there is none). ``terms`` take the place of the terms of speed that ship.
    """

    cluster: Cluster
    workload: Serving
    fixed: Constraints
    engine: EngineRef
    batches: tuple[int, ...] = BATCHES
    pools: PoolsAsked = "aggregated"
    free: bool = False
    confidence: float | None = None
    margin: Margin = _CENTRAL
    terms: ServingTerms | None = None

    def of(self, choice: FormatChoice, *, apart: bool) -> SearchQuestion:
        """The question of one choice: with the margin that its plans, of pools ``apart`` or not, need for ``confidence``."""
        if self.confidence is None:
            return self
        model, accelerator = choice.precision.model, self.cluster.accelerator
        machine = Machine.serving(
            self.cluster,
            work=model_work(model, accelerator),
            engine=engines.canonical(self.engine.name),
            version=self.engine.version,
            terms=self.terms,
            eager=self.fixed.options.eager,
            sampling=self.workload.sampling,
        )
        in_flight = float(self.workload.concurrency or 0)
        spread = pools_spread(machine, model) if apart else speed_spread(machine, model, in_flight=in_flight)
        return replace(self, margin=margin_of(spread, self.confidence))

    @property
    def stated(self) -> bool:
        """Whether the load is stated, so that a plan is one row and not one for each of ``batches``."""
        return self.workload.concurrency is not None or self.workload.rate is not None

    def owned(self, used: NDArray[Any]) -> Any:
        """GPUs over which throughput counts: all that are there, or those ``used`` where their number is free."""
        return used if self.free else np.full(len(used), self.cluster.gpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSpace:
    """The layouts of a search: ``whole`` are those of plans without pools, ``parts`` those of one engine of any size."""

    whole: Layouts | None = None
    parts: Layouts | None = None


@dataclass(kw_only=True, slots=True)
class PlanTally:
    """Plans counted while a table is made: all, those that obey the rules of layouts, those that start, and why others lost.

    ``worse`` counts plans within the targets that a better one of the same pools stands for.
    """

    searched: int = 0
    legal: int = 0
    fitting: int = 0
    worse: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def unlawful(self, layouts: Layouts, each: int) -> None:
        """Count the layouts that break a rule, ``each`` plans for every one."""
        self.searched += each * sum(layouts.rejected.values())
        self.rejected.update({why: count * each for why, count in layouts.rejected.items()})

    def lawful(self, count: int) -> None:
        self.searched += count
        self.legal += count

    def lost(self, why: str, count: int) -> None:
        if count:
            self.rejected[why] += int(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedEngines:
    """Engines of one choice that start: ``layout`` and ``replicas`` as a table, the requests that a replica runs at once,
    the share of the card ``used``, and what timing needs."""

    layout: Layout
    replicas: NDArray[np.int64]
    admission: Admission
    used: NDArray[np.float64]
    work: ModelWork
    machine: Machine
    kv_format: Format

    def __len__(self) -> int:
        return len(self.used)

    def only(self, chosen: NDArray[Any]) -> StartedEngines:
        """The engines that a mask or index array names."""
        layout, replicas, admission, used = self.take(chosen)
        return replace(self, layout=layout, replicas=replicas, admission=admission, used=used)

    def take(self, chosen: NDArray[Any]) -> tuple[Layout, NDArray[np.int64], Admission, NDArray[np.float64]]:
        return take(self.layout, chosen), self.replicas[chosen], self.admission.take(chosen), self.used[chosen]


def options_for(choice: FormatChoice, *, context: int, fixed: Constraints, engine: str) -> ServeOptions:
    """The engine options of every plan of ``choice``. With slots all layers are asked onto the card: no spill to the host."""
    extra = {} if choice.slots is None else dict(traits_of(engine).all_on_cards)
    return replace(
        fixed.options,
        extra=extra,
        context=context,
        kv_dtype=None if choice.kv_dtype == "auto" else choice.kv_dtype,
        quantization=choice.precision.on_load,
        dtype=fixed.options.dtype or choice.precision.dtype,
        text_only=fixed.options.text_only or choice.precision.text_only,
        max_seqs=choice.slots or fixed.options.max_seqs,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StartTable:
    """How the engines of a table of layouts start under one choice: the stage at which each ends, the requests
    that it runs at once, the share of the card that it uses, and the cache format in force."""

    stages: NDArray[Any]
    admission: Admission
    used: NDArray[np.float64]
    kv_format: str


def start_engines(choice: FormatChoice, tables: Sequence[Layouts], question: SearchQuestion) -> list[StartTable]:
    """The start-up of every engine of ``tables`` under ``choice``, all at once."""
    options = options_for(
        choice, context=question.workload.longest_request or 0, fixed=question.fixed, engine=question.engine.name
    )
    start = _start(choice, joined([one.layout for one in tables]), options, question)
    ends = np.cumsum([one.legal for one in tables])
    shape = (int(ends[-1]),)
    stages = np.broadcast_to(engines.get(question.engine.name).likeliest_stage(start)[0], shape)
    admission = _admission(start, question).broadcast_to(shape)
    used = np.broadcast_to(start.ledger.total() / start.capacity_bytes, shape)
    parts = [slice(end - one.legal, end) for end, one in zip(ends, tables, strict=True)]
    return [
        StartTable(stages=stages[part], admission=admission.take(part), used=used[part], kv_format=start.kv_format)
        for part in parts
    ]


def sequence_limit(each: Any, most: Any, question: SearchQuestion) -> NDArray[np.float64]:
    """The limit of sequences with which an attention replica runs no more requests than it is judged for: ``each`` in flight, of
    at ``most`` as many as the engine admits by itself; 0 where its own limit stays in force.

    Requests that arrive at a rate are ``n`` in flight in the mean, and rarely (1 in 700, Poisson) above ``n + 3 sqrt(n)``.
    Numbers or arrays with one entry per plan.
    """
    each, most = np.asarray(each, dtype=float), np.asarray(most, dtype=float)
    if question.fixed.options.max_seqs is not None or _tells_no_limit(question):
        return np.zeros(np.broadcast_shapes(each.shape, most.shape))
    if question.workload.rate is not None:
        each = each + _RARELY * np.sqrt(each)
    limit = np.maximum(np.ceil(each - 1e-9), 1.0)
    return np.where(limit < most, limit, 0.0)


def _tells_no_limit(question: SearchQuestion) -> bool:
    """Whether engines serve one reader, or have a part of the cache for each request instead of a limit."""
    traits = engines.traits_of(question.engine.name)
    return traits.one_reader or traits.cache_in_slots


def limited(
    choice: FormatChoice,
    layout: Layout,
    admission: Admission,
    used: NDArray[np.float64],
    limit: Any,
    question: SearchQuestion,
) -> tuple[Admission, NDArray[np.float64]]:
    """(admission, share of the card) of engines of ``layout`` that are told their ``limit`` of sequences (see `sequence_limit`):
    fewer graphs and logits leave more to the cache. Those that are told none keep what they have."""
    told = np.broadcast_to(np.asarray(limit) > 0, used.shape)
    if not told.any():
        return admission, used
    options = options_for(
        choice, context=question.workload.longest_request or 0, fixed=question.fixed, engine=question.engine.name
    )
    seqs = np.where(told, limit, admission.most).astype(np.int64)
    start = _start(choice, layout, replace(options, max_seqs=seqs), question)
    ends = np.broadcast_to(start.ledger.total() / start.capacity_bytes, used.shape)
    return _admission(start, question).broadcast_to(used.shape), np.asarray(ends)


def _start(choice: FormatChoice, layout: Layout, options: ServeOptions, question: SearchQuestion) -> StartUp:
    return engines.get(question.engine.name).start_up(
        model=choice.precision.model, accelerator=question.cluster.accelerator, layout=layout, options=options,
        version=question.engine.version,
    )  # fmt: skip


def _admission(start: StartUp, question: SearchQuestion) -> Admission:
    workload = question.workload
    return admission_of(start, question.engine.name, isl=workload.isl or 0, osl=workload.osl or 0)


def started(
    choice: FormatChoice, start: StartTable, layouts: Layouts, question: SearchQuestion, tally: PlanTally, *, each: int
) -> StartedEngines:
    """The engines of ``layouts`` that start under ``choice``; the others are counted, ``each`` plans for every one, by the
    first stage at which they die."""
    cluster = question.cluster
    words = {
        "oom_load": "weights do not fit the card",
        "oom_profile": "nothing of the budget is left for the KV cache",
        "kv_too_small": f"KV cache too small for one request of {counted(question.workload.longest_request or 0, 'token')}",
        "oom_capture": "memory outside the engine's budget exceeds the card",
        "oom_runtime": "too little memory stays free for what serving allocates later",
    }
    for stage, why in words.items():
        dead = each * int((start.stages == stage).sum())
        tally.lawful(dead)
        tally.lost(why, dead)
    good = np.asarray(start.stages == "ok")
    served = as_computed(choice.precision.model, question.engine.name, ServeOptions(dtype=choice.precision.dtype))
    work = model_work(served, cluster.accelerator)
    return StartedEngines(
        layout=take(layouts.layout, good),
        replicas=layouts.replicas[good],
        admission=start.admission.take(good),
        used=start.used[good],
        work=work,
        machine=Machine.serving(
            cluster,
            work=work,
            engine=engines.canonical(question.engine.name),
            version=question.engine.version,
            terms=question.terms,
            eager=question.fixed.options.eager,
            sampling=question.workload.sampling,
        ),
        kv_format=catalogue.get(start.kv_format),
    )
