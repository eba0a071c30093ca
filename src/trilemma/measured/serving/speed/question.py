"""One row of a serving-speed table read as a question: which model on which cards, laid out, loaded and measured how.

Columns win over names; whatever had to be filled in is listed; what cannot be read makes the row unusable with its reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from trilemma.engines.loading import as_published_for
from trilemma.engines.traits import every
from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.dating import parse_period
from trilemma.measured.serving.speed import launch_scripts
from trilemma.measured.serving.speed.pool_rows import PoolLayout, measured_per_gpu, of_pools, pools_of
from trilemma.measured.serving.speed.row_layouts import layout_of, replicas_of
from trilemma.measured.serving.speed.row_loads import (
    cached_of,
    factors_of_row,
    is_burst,
    is_limited,
    kernels_of_row,
    lengths_of,
    load_of,
    most_sequences_of,
    rate_of,
    refuse_unstated,
)
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.models.identity import ByIdentity
from trilemma.plans import Layout
from trilemma.timing.eras import Era, age_of, age_within

#: What a figure measures: latency or throughput of a load, throughput with every request queued, or one bare phase.
Kind = Literal["load", "queued", "decode", "prefill"]

_PHASES: dict[str, Kind] = {"prefill_tok_s": "prefill", "decode_tok_s": "decode"}
#: Metric → (lowest, highest) value that can be.
METRICS = {
    "ttft_ms": (1e-3, 1e8),
    "tpot_ms": (1e-4, 1e6),
    "output_tok_s_total": (1e-4, 1e9),
    "output_tok_s_per_gpu": (1e-4, 1e7),
    "prefill_tok_s": (1e-3, 1e9),
    "decode_tok_s": (1e-4, 1e8),
}

#: Tier of a row → its weight in a fit.
_TRUST = {"B": 0.5, "C": 0.0}
#: The wait for a first token hangs on how a load began (all at once, or as others end), which only tier A lets one know.
_BEGUN = {"B": 0.0, "C": 0.0}
#: A release as rows state it, alone or as the tag of an image.
_RELEASE = re.compile(r"(?:\S{1,100}:)?v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedQuestion:
    """What is asked of timing. ``isl`` and ``osl`` are mean tokens; ``concurrency`` is infinite where all is queued.

    ``precision`` is what the row calls its weights; ``layout.dp`` counts replicas of attention. ``trust`` is the weight of
    the row in a fit: usable with assumptions counts half (its time to first token nothing), flagged or contradictory
    nothing. ``rate`` is requests a second where arrivals are stated instead of requests in flight, ``burst`` whether all are sent
    at once, ``passes_waited`` those that a prompt waits for by its script; ``cached`` tokens lie before the ``isl`` of a bare
    prompt; ``factors`` what the build and the backend that a row states multiply terms by, ``age`` that of its release,
    ``kernels`` coefficients that they and the options set; ``ahead`` whether the scheduler prepares a step while the cards
    compute one, ``sampling`` what requests ask of the sampler; ``most_sequences`` those that its server runs at once; ``pools``
    how prefill and decode were laid out where they ran apart (``layout`` then counts the cards of both); ``flags`` its script's.
    """

    model: Model
    accelerator: Accelerator
    engine: str
    precision: str
    layout: Layout
    isl: float
    osl: float
    concurrency: float
    kind: Kind
    metric: str
    measured: float
    assumed: tuple[str, ...]
    trust: float = 1.0
    rate: float | None = None
    burst: bool = False
    passes_waited: float = 0.0
    cached: float = 0.0
    kernels: tuple[tuple[str, float], ...] = ()
    factors: tuple[tuple[str, float], ...] = ()
    age: Era = field(default_factory=Era)
    flags: tuple[tuple[str, float], ...] = ()
    ahead: bool = True
    sampling: str = "greedy"
    version: str | None = None
    most_sequences: float | None = None
    pools: PoolLayout | None = None

    @property
    def load(self) -> tuple[float | str, ...]:
        """Requests in flight, or the rate at which they arrive."""
        return (self.concurrency,) if self.rate is None else (f"{self.rate:g} requests a second",)


def read_speed_question(row: Row, models_dir: str | None) -> SpeedQuestion:
    """The question of one row. Raises `UnusableRow` with the reason where the row lacks what a prediction needs."""
    assumed: list[str] = []
    metric, measured = _metric(row)
    engine = engine_of(row.text("engine"))
    refuse_unstated(row)
    apart = of_pools(row)
    layout = Layout() if apart else layout_of(row, assumed)
    rate = rate_of(row)
    concurrency, queued = (1.0, False) if rate is not None else load_of(row)
    isl, osl = lengths_of(row, metric)
    cached = cached_of(row, isl) if metric == "prefill_tok_s" else 0.0
    model, precision = _model(row, models_dir, assumed)
    model = model if precision in _IN_16_BITS else _published(ByIdentity(model), engine)
    accelerator = _card(row, assumed)
    mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    pools = None
    layout = replicas_of(row, layout, model, accelerator, assumed) if queued and not apart else layout
    if is_limited(row):
        assumed.append("as if all requests were queued at once: the row names limits of latency without a rate")
    if apart:
        pools = pools_of(row, engine, accelerator, assumed)
        layout = Layout(tp=pools.gpus)
        measured = measured_per_gpu(row, pools, measured, assumed) if metric == "output_tok_s_per_gpu" else measured
    else:
        layout = launch_scripts.as_launched(
            row, layout, engine=engine, accelerator=accelerator, mixture=mixture, assumed=assumed
        )
    sampling = launch_scripts.sampling_of(row, engine=engine, accelerator=accelerator)
    age = _age(row, engine, accelerator, assumed)
    kind = _PHASES.get(metric, "queued" if queued else "load")
    return SpeedQuestion(
        model=model,
        accelerator=accelerator,
        engine=engine,
        precision=precision,
        layout=layout,
        isl=isl - cached,
        osl=osl,
        concurrency=concurrency,
        kind=kind,
        metric=metric,
        measured=measured,
        assumed=tuple(assumed),
        trust=0.0 if is_limited(row) else _trust(row.text("tier").upper(), metric),
        rate=rate,
        burst=rate is None and is_burst(row, concurrency),
        passes_waited=launch_scripts.passes_waited(
            row,
            layout,
            engine=engine,
            accelerator=accelerator,
            mixture=mixture,
            isl=isl,
            osl=osl,
            in_flight=concurrency,
        ),
        factors=factors_of_row(row, engine, accelerator),
        age=age,
        flags=tuple(sorted(launch_scripts.flags_of(row, engine=engine, accelerator=accelerator).items())),
        ahead=launch_scripts.works_ahead(row, engine=engine, accelerator=accelerator, sampling=sampling),
        sampling=sampling,
        version=row.text("version")[:100] or None,
        cached=cached,
        kernels=kernels_of_row(row, engine, accelerator),
        most_sequences=most_sequences_of(row),
        pools=pools,
    )


def _age(row: Row, engine: str, accelerator: Accelerator, assumed: list[str]) -> Era:
    """The age of the release that a row states, or of those of the year that it states in its place."""
    text = row.text("version")[:200]
    if (release := _RELEASE.match(text)) is not None:
        return age_of(engine, release[1], accelerator)
    if (period := parse_period(text)) is None:
        return Era()
    age = age_within(engine, *period, accelerator)
    if age.name:
        assumed.append(f"a release of {engine} as old as {shorten(text)}: {age.name}")
    return age


def engine_of(text: str) -> str:
    """The engine that a column names. Raises `UnusableRow` for engines whose steps are not modelled."""
    if not text:
        raise UnusableRow("names no engine")
    lower = text.lower()
    for engine, traits in every().items():
        if lower.startswith(traits.column_words):
            return engine
    raise UnusableRow(f"engine {shorten(text)!r}: its steps are not modelled")


def _trust(tier: str, metric: str) -> float:
    return (_BEGUN if metric == "ttft_ms" else _TRUST).get(tier, 1.0)


def _metric(row: Row) -> tuple[str, float]:
    metric = row.text("metric")
    if metric not in METRICS:
        raise UnusableRow(f"metric {shorten(metric)!r} is not one of {', '.join(METRICS)}")
    low, high = METRICS[metric]
    value = row.number("value", low=low, high=high)
    if value is None:
        raise UnusableRow("states no value")
    return metric, value


#: Words of a precision column that name no scheme of the house, and the scheme that they mean.
_PRECISIONS = {"fp4": "nvfp4", "uint4": "int4", "f16": "bf16", "fp16": "bf16"}
_IN_16_BITS = ("f16", "fp16", "bf16")  # files named so keep in 16 bits what was published in them
_UNSTATED = ("", "unset")
#: Bits of a weight and the group that shares a scale, as tables of MLX have them.
_BITS_ALONE = re.compile(r"q[2-8](?: g\d{2,3})?")


def _model(row: Row, models_dir: str | None, assumed: list[str]) -> tuple[Model, str]:
    name, text = row.text("model")[:300], row.text("precision_weights")[:100].lower()
    if not name:
        raise UnusableRow("names no model")
    model, precision, notes = _stored(name, text, models_dir)
    if model is None:
        raise UnusableRow(precision)
    assumed.extend(notes)
    return model, precision


@lru_cache(maxsize=1024)
def _stored(name: str, text: str, models_dir: str | None) -> tuple[Model | None, str, tuple[str, ...]]:
    """(model as the row stores it, precision, notes); without a model the second value says why."""
    from trilemma.models.quantized import find_scheme, requantize
    from trilemma.models.resolve import load_model

    try:
        model = load_model(name, models_dir=models_dir)
        if text in _UNSTATED:
            return model, _own(model), (f"weights as {_own(model)}: the row does not say",)
        scheme = "q4_k_m" if text.startswith("ollama default") else _PRECISIONS.get(text, text)
        own = model.quantization.weight_format if model.quantization else None
        if own is not None and own.bits < 16 and _BITS_ALONE.fullmatch(text) and text[1] == f"{own.bits:g}":
            return model, _own(model), ()  # how many bits, of a checkpoint whose name says how
        if own is not None and own.name.startswith("mxfp4"):
            if text in _IN_16_BITS:
                return model, text, ()
            return model, own.name, ()  # published in MXFP4 only: tables call the same files fp4, fp8 or mxfp4
        wanted = find_scheme(scheme)
        if own is None and not wanted.quantises:
            return model, "bf16", ()
        if own is not None and (own.kind, own.bits) == (wanted.format.kind, wanted.format.bits):
            return model, scheme, ()
        try:
            listed = load_model(f"{name} {scheme}")
        except InputError:
            listed = requantize(model, scheme)
        return listed, scheme, (f"weights stored as {scheme}: said by the row, not by the model's files",)
    except InputError as error:
        return None, error.flags, ()


@lru_cache(maxsize=1024)
def _published(same: ByIdentity, engine: str) -> Model:
    """Remembered, so that rows of one model are one bench."""
    assert isinstance(same.value, Model)
    return as_published_for(same.value, engine)


def _own(model: Model) -> str:
    quantization = model.quantization
    return quantization.weight_format.name if quantization and quantization.weight_format else "bf16"


def _card(row: Row, assumed: list[str]) -> Accelerator:
    name = row.text("gpu")[:300]
    if not name:
        raise UnusableRow("names no GPU")
    found = _found_card(re.sub(r"[‐‑‒]", "-", name))
    if isinstance(found, str):
        raise UnusableRow(found)
    accelerator, notes = found
    assumed.extend(notes)
    return accelerator


@lru_cache(maxsize=512)
def _found_card(name: str) -> tuple[Accelerator, tuple[str, ...]] | str:
    from trilemma.hardware.catalogue import find_measured

    try:
        accelerator, warnings = find_measured(name, None)
    except InputError as error:
        return error.flags
    return accelerator, tuple(warning.message for warning in warnings)
