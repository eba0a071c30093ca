"""What an exported plan is expected to do, and the benchmark that tells whether it does: ``prediction.json``."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.engines import traits_of
from trilemma.engines.deployment.facts import of_engine
from trilemma.engines.traits import Benchmark
from trilemma.errors import InputError, shorten
from trilemma.models.architecture import Model
from trilemma.outside_files import read_text
from trilemma.plans import Plan
from trilemma.plans.document import plan_from_document, plan_to_document

SCHEMA = "trilemma/prediction@1"
FILE = "prediction.json"
_MOST_BYTES = 2**20
_FIGURES = ("ttft_ms", "tpot_ms")
#: Requests of a benchmark for each one in flight: enough that the first and last rounds weigh little.
_ROUNDS = 10
#: AIPerf loads the engines that have no load generator of their own, at the port that they listen on. ``load`` is the word of
#: so many at once, or of so many that arrive a second.
_OTHER_BENCH = Benchmark(
    command="aiperf profile --model {model} --url http://localhost:{port} --endpoint-type chat --streaming"
    " --synthetic-input-tokens-mean {isl} --output-tokens-mean {osl} {load}"
    " --request-count {prompts} --output-artifact-dir bench",
    results="bench/profile_export_aiperf.json",
)
_USUAL_PORT = 8000
#: What a figure may be: lengths in tokens, requests at once, requests a second, milliseconds.
_MOST = {"isl": 2**30, "osl": 2**30, "concurrency": 2**20, "rate": 1e6, "ms": 1e9}
_STATISTICS = ("value", "low", "high", "p50", "p99")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One load of one plan: (value, low, high) of each figure in milliseconds, and how to measure it.

    ``concurrency`` counts requests in flight over all engines of the plan; they arrive at ``rate`` a second where the plan was
    asked for one. ``served_as`` is the model's word in the commands, ``precision`` the scheme laid over the published weights.
    """

    model: str
    accelerator: str
    gpus: int
    gpus_per_node: int
    plan: Plan
    isl: float
    osl: float
    concurrency: float
    figures: Mapping[str, tuple[float, float, float]]
    benchmark: str
    rate: float | None = None
    served_as: str | None = None
    precision: str | None = None

    def weights(self, models_dir: str | None = None) -> Model:
        """The model as the plan stores it. Raises `InputError` for models and schemes that are not known."""
        from trilemma.engines.loading import while_loading
        from trilemma.models.quantized import requantize
        from trilemma.models.resolve import load_model

        model = load_model(self.model, models_dir=models_dir)
        model = requantize(model, self.precision) if self.precision is not None else model
        return while_loading(model, self.plan.pools[0].options)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadBenchmark:
    """The benchmark of one load: its command as words, and the file that it leaves in its folder."""

    words: tuple[str, ...]
    results: str


def bench_for(
    engine: str, *, model: str, isl: int, osl: int, concurrency: int, rate: float | None = None
) -> LoadBenchmark:
    """How an engine is measured under one load: so many requests at once, or, with ``rate``, arriving at so many a second
    whatever the answers do. ``model`` is the name that it is asked by."""
    own = traits_of(engine).benchmark
    bench = own or _OTHER_BENCH
    port = of_engine(engine).get("port", _USUAL_PORT)
    at_once = "--concurrency" if own is None else "--max-concurrency"
    load = f"{at_once} {concurrency}" if rate is None else f"--request-rate {rate:g}"
    numbers = {"isl": isl, "osl": osl, "prompts": concurrency * _ROUNDS, "port": port}
    words = [word.format(model=model, **numbers) for word in bench.command.replace("{load}", load).split()]
    return LoadBenchmark(words=tuple(words), results=bench.results)


def prediction_document(
    estimate: Mapping[str, Any], *, served_as: str, asked_as: str | None = None
) -> dict[str, Any] | None:
    """The prediction of an estimate (``trilemma/estimate@1``); None where it states no speed or no load. ``asked_as`` is the name
    by which clients ask, where it is not that which the commands load.

    The estimate may come from anywhere: only what a prediction needs is taken over. Raises `InputError` for figures that
    cannot be (no numbers, negative, not finite, bounds the wrong way round).
    """
    inputs, speed = estimate.get("inputs"), estimate.get("speed")
    load = inputs.get("workload") if isinstance(inputs, Mapping) else None
    if not isinstance(inputs, Mapping) or not isinstance(speed, Mapping) or not isinstance(load, Mapping):
        return None
    plan = plan_from_document(inputs["plan"])
    rate = None if load.get("rate") is None else _figure(load["rate"], "workload rate", _MOST["rate"])
    stated = {
        "isl": load.get("isl"),
        "osl": load.get("osl"),
        "concurrency": in_flight(load, speed, plan),
    }
    if any(value is None for value in stated.values()):
        return None
    numbers: dict[str, Any] = {
        name: int(_figure(value, f"workload {name}", _MOST[name], least=1)) for name, value in stated.items()
    }
    numbers |= {"rate": rate} if rate is not None else {}
    precision = inputs["model"].get("precision")
    return {
        "schema": SCHEMA,
        "model": str(inputs["model"]["name"]),
        "served_as": served_as,
        **({"precision": precision[:200]} if isinstance(precision, str) else {}),
        "cluster": _cluster(inputs.get("cluster"), plan),
        "plan": plan_to_document(plan),
        "workload": numbers,
        "predicted": {name: _statistics(speed[name], name) for name in _FIGURES if name in speed},
        "benchmark": shlex.join(bench_for(plan.engine.name, model=asked_as or served_as, **numbers).words),
    }


def in_flight(load: Mapping[str, Any], speed: Mapping[str, Any], plan: Plan) -> float | None:
    """Requests in flight over all engines of ``plan``: those stated, else what arrives a second times how long it stays
    (Little's law), else the batch of one attention replica times the replicas that answer. None where nothing tells.

    ``load`` and ``speed`` are those of an estimate. Raises `InputError` for figures that cannot be.
    """
    if load.get("concurrency") is not None:
        return _figure(load["concurrency"], "workload concurrency", _MOST["concurrency"], least=1)
    stays = speed.get("request_ms")
    if load.get("rate") is not None and isinstance(stays, Mapping) and stays.get("value") is not None:
        rate = _figure(load["rate"], "workload rate", _MOST["rate"])
        held = _figure(stays["value"], "speed.request_ms.value", _MOST["ms"]) / 1e3
        return float(max(math.ceil(rate * held), 1))
    if speed.get("batch") is None:
        return None
    answering = next((pool for pool in plan.pools if pool.role == "decode"), plan.pools[0])
    batch = _figure(speed["batch"], "speed.batch", _MOST["concurrency"])
    return float(max(math.ceil(batch * float(answering.layout.dp) * answering.replicas), 1))


def _figure(value: Any, name: str, most: float, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or value == 0:
        raise InputError(f"{name} {shorten(repr(value)[:200])} cannot be; give what fit or plan printed with --json")
    return float(value)


def _statistics(found: Any, name: str) -> dict[str, float]:
    """Mean, bounds and percentiles of one latency in milliseconds."""
    if not isinstance(found, Mapping) or any(found.get(key) is None for key in _STATISTICS[:3]):
        raise InputError(f"speed.{name} has no value, low and high; give what fit or plan printed with --json")
    values = {
        key: _figure(found[key], f"speed.{name}.{key}", _MOST["ms"])
        for key in _STATISTICS
        if found.get(key) is not None
    }
    if not values["low"] <= values["high"]:
        raise InputError(f"speed.{name}: low {values['low']:g} is above high {values['high']:g}; bounds were changed")
    return values


def _cluster(found: Any, plan: Plan) -> dict[str, Any]:
    """The card by its id, GPUs of the plan and of a node."""
    card = found.get("accelerator") if isinstance(found, Mapping) else None
    name = card.get("id") if isinstance(card, Mapping) else None
    per_node = found.get("gpus_per_node") if isinstance(found, Mapping) else None
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise InputError("inputs.cluster.accelerator.id names no card; give what fit or plan printed with --json")
    gpus = int(plan.gpus)
    shape = gpus if per_node is None else int(_figure(per_node, "inputs.cluster.gpus_per_node", 2**20, least=1))
    return {"accelerator": {"id": name}, "gpus": gpus, "gpus_per_node": shape}


def read_prediction(path: str | Path) -> Prediction:
    """Raises `InputError` for files that are not a prediction."""
    name = shorten(str(path))
    try:
        document = json.loads(read_text(Path(path), most_bytes=_MOST_BYTES))
        if document["schema"] != SCHEMA:
            raise ValueError("schema")
        cluster, load = document["cluster"], document["workload"]
        if any(not 0 < float(load.get(name, 1)) < math.inf for name in ("isl", "osl", "concurrency", "rate")):
            raise ValueError("workload")
        figures = {
            figure: tuple(float(document["predicted"][figure][key]) for key in ("value", "low", "high"))
            for figure in _FIGURES
            if figure in document["predicted"]
        }
        return Prediction(
            model=str(document["model"]),
            accelerator=str(cluster["accelerator"]["id"]),
            gpus=int(cluster["gpus"]),
            gpus_per_node=int(cluster["gpus_per_node"]),
            plan=plan_from_document(document["plan"]),
            isl=float(load["isl"]),
            osl=float(load["osl"]),
            concurrency=float(load["concurrency"]),
            figures=figures,  # type: ignore[arg-type]
            benchmark=str(document["benchmark"]),
            rate=None if load.get("rate") is None else float(load["rate"]),
            served_as=_word(document, "served_as"),
            precision=_word(document, "precision"),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise InputError(f"{name} is not a prediction; give the {FILE} that trilemma export wrote") from None


def _word(document: Mapping[str, Any], key: str) -> str | None:
    return None if document.get(key) is None else str(document[key])[:4096]
