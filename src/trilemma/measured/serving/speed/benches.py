"""Questions of a serving-speed table gathered into benches, so that timing answers all rows of a deployment at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from trilemma.engines import traits_of
from trilemma.engines.base import StartUp
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.measured.serving.speed.figures import SpeedFigures
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.models.architecture import Model
from trilemma.models.identity import ByIdentity
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import Array
from trilemma.timing.admission import Admission
from trilemma.timing.coefficients import spec_sheet
from trilemma.timing.machine import Machine
from trilemma.timing.operators import model_work
from trilemma.timing.serving_terms import precision_of
from trilemma.versions import DEFAULT_ENGINE

_QUANTITIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "prefill_tok_s": "prefill", "decode_tok_s": "decode"}
#: Requests at once where everything is queued and the memory rules leave no room for one.
_CRAMPED = 16.0


def quantity_of(question: SpeedQuestion) -> str:
    """The figure in timing's own words; rates of both kinds count tokens of the whole plan."""
    return _QUANTITIES.get(question.metric, "output")


def in_seconds_or_tokens(question: SpeedQuestion, value: float) -> float:
    """A measured value in the unit of `quantity_of`."""
    if question.metric in ("ttft_ms", "tpot_ms"):
        return value / 1e3
    return value * float(question.layout.gpus) if question.metric == "output_tok_s_per_gpu" else value


def in_own_unit(question: SpeedQuestion, value: float) -> float:
    """A prediction in the unit of the row's metric."""
    return value / in_seconds_or_tokens(question, 1.0)


def kv_format_of(model: Model) -> Format:
    """How the cache of a benchmark is stored where no row says: 8 bits under checkpoints that multiply in 8 or 4 bits."""
    quantization = model.quantization
    bits = quantization.activation_bits if quantization is not None else None
    return catalogue.get("fp8_e4m3" if bits is not None and bits <= 8 else "bf16")


def benches_of(questions: Sequence[SpeedQuestion | str]) -> list[SpeedFigures]:
    """Every usable question of one pool in a bench; ``Bench.at`` holds its index."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at, question in enumerate(questions):
        if isinstance(question, SpeedQuestion) and question.pools is None:
            key = (id(question.model), question.accelerator.id, question.engine, question.kernels)
            groups.setdefault(key, []).append(at)
    return [_bench([(at, questions[at]) for at in members]) for members in groups.values()]  # type: ignore[misc]


def _bench(members: Sequence[tuple[int, SpeedQuestion]]) -> SpeedFigures:
    questions = [question for _, question in members]
    first = questions[0]
    layout = Layout(
        **{name: np.array([getattr(one.layout, name) for one in questions]) for name in ("tp", "pp", "dp", "ep")}
    )
    work, kv_format = model_work(first.model, first.accelerator), kv_format_of(first.model)
    gpus = int(max(np.max(layout.gpus), first.accelerator.gpus_per_node))
    machine = Machine.of(Cluster.of(first.accelerator, gpus), first.engine)
    machine = machine.with_coefficients(machine.coefficients.with_numbers(**dict(first.kernels)))
    return SpeedFigures(
        work=work,
        machine=machine,
        engine=first.engine,
        precision=precision_of(work),
        kv_format=kv_format,
        layout=layout,
        isl=_column(questions, "isl"),
        osl=_column(questions, "osl"),
        concurrency=np.where(np.isinf(_column(questions, "concurrency")), 1e9, _column(questions, "concurrency")),
        cached=_column(questions, "cached"),
        rate=np.array([np.nan if one.rate is None else one.rate for one in questions]),
        admission=Admission.joined([_admission(one, kv_format.name) for one in questions]),
        queued=np.array([one.kind == "queued" for one in questions]),
        quantity=np.array([quantity_of(one) for one in questions]),
        measured=np.array([in_seconds_or_tokens(one, one.measured) for one in questions]),
        at=np.array([at for at, _ in members]),
        trust=_column(questions, "trust"),
        passes_waited=_column(questions, "passes_waited"),
        bursts=np.array([one.burst for one in questions]),
        factors=_factors(questions),
        told=_told(questions, machine),
    )


def _factors(questions: Sequence[SpeedQuestion]) -> dict[str, Array]:
    """What releases, ages and backends multiply terms by, one entry a question."""
    found: dict[str, Array] = {}
    for at, one in enumerate(questions):
        for term, factor in (*one.factors, *one.age.factors.items()):
            if factor != 1.0:
                found.setdefault(term, np.ones(len(questions)))[at] *= factor
    return dict(sorted(found.items()))


def _told(questions: Sequence[SpeedQuestion], machine: Machine) -> dict[str, Array]:
    """Numbers of ``machine`` that flags of the rows, and what their requests asked of the sampler, set."""
    power, turn = spec_sheet()["host"]["host_overlap_power"], 1.0
    logit_s = [machine.logit_s(one.sampling, engine=one.engine, version=one.version) for one in questions]
    names = sorted({name for one in questions for name, _ in one.flags})
    told = {
        name: np.array([dict(one.flags).get(name, getattr(machine.coefficients, name)) for one in questions])
        for name in names
    }
    return told | {
        "host_overlap_power": np.array([power if one.ahead else turn for one in questions]),
        "sampled_logit_s": np.array(logit_s),
    }


def _column(questions: Sequence[SpeedQuestion], name: str) -> Array:
    return np.array([getattr(question, name) for question in questions], dtype=float)


def _admission(question: SpeedQuestion, kv_format: str) -> Admission:
    """Requests that one replica runs at once, by the default engine's memory rules for every engine and the engine's own promise.

    A load that was run did fit: where the rules leave no room for one request they know too little of the deployment, and
    its own load is taken to fit.
    """
    layout, traits = question.layout, traits_of(question.engine)
    degrees = (int(layout.tp), int(layout.pp), int(layout.dp), int(layout.ep))
    cards, model = ByIdentity(question.accelerator), ByIdentity(question.model)
    lengths = [max(int(question.isl + question.osl * part), 1) for part in (0.5, 1.0)]
    half_way, full = (_cache_slots(model, cards, degrees, length, kv_format) for length in lengths)
    by_card = _most_by_card(model, cards, degrees, lengths[-1]) if question.engine == DEFAULT_ENGINE else None
    if min(half_way, full) < 1.0:
        half_way = full = question.concurrency if math.isfinite(question.concurrency) else _CRAMPED
    return Admission(
        half_way=half_way,
        at_full_length=full,
        most=question.most_sequences or by_card or traits.most_sequences,
        reserves=traits.admits_whole,
    )


@lru_cache(maxsize=4096)
def _cache_slots(
    same_model: ByIdentity, same_card: ByIdentity, degrees: tuple[int, int, int, int], length: int, kv_format: str
) -> float:
    options = ServeOptions(context=length, kv_dtype="fp8" if kv_format != "bf16" else "auto", max_seqs=256)
    start = _started(same_model, same_card, degrees, options)
    return 0.0 if start is None else max(float(start.pool.concurrency), 0.0)


@lru_cache(maxsize=4096)
def _most_by_card(
    same_model: ByIdentity, same_card: ByIdentity, degrees: tuple[int, int, int, int], length: int
) -> float | None:
    """Sequences that the default engine runs at once on this card unless told otherwise (256 on an A100, 1,024 on an H100)."""
    start = _started(same_model, same_card, degrees, ServeOptions(context=length))
    return None if start is None else float(np.max(start.max_seqs))


def _started(
    same_model: ByIdentity, same_card: ByIdentity, degrees: tuple[int, int, int, int], options: ServeOptions
) -> StartUp | None:
    """The start of the default engine; None where it refuses."""
    from trilemma import engines

    model, accelerator = same_model.value, same_card.value
    assert isinstance(model, Model) and isinstance(accelerator, Accelerator)  # noqa: PT018
    tp, pp, dp, ep = degrees
    try:
        return engines.get(DEFAULT_ENGINE).start_up(
            model=model, accelerator=accelerator, layout=Layout(tp=tp, pp=pp, dp=dp, ep=ep), options=options
        )
    except InputError:
        return None
