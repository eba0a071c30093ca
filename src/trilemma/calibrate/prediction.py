"""What an exported plan is expected to do, and the benchmark that tells whether it does: ``prediction.json``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.engines.bounded_yaml import read_text
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan
from trilemma.plans.document import plan_from_document

SCHEMA = "trilemma/prediction@1"
FILE = "prediction.json"
_MOST_BYTES = 2**20
_FIGURES = ("ttft_ms", "tpot_ms")
#: Requests of a benchmark for each one in flight: enough that the first and last rounds weigh little.
_ROUNDS = 10
_BENCHES = {
    "vllm": (
        "vllm bench serve --model {model} --dataset-name random --random-input-len {isl} --random-output-len {osl}"
        " --ignore-eos --max-concurrency {concurrency} --num-prompts {prompts} --save-result --result-filename bench.json"
    ),
    "sglang": (
        "python3 -m sglang.bench_serving --backend sglang --model {model} --dataset-name random --random-input-len {isl}"
        " --random-output-len {osl} --random-range-ratio 1 --max-concurrency {concurrency} --num-prompts {prompts}"
        " --output-file bench.jsonl"
    ),
}
_OTHER_BENCH = (
    "aiperf profile --model {model} --url http://localhost:8000 --endpoint-type chat --streaming"
    " --synthetic-input-tokens-mean {isl} --output-tokens-mean {osl} --concurrency {concurrency}"
    " --request-count {prompts}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One load of one plan: (value, low, high) of each figure in milliseconds, and how to measure it."""

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


def prediction_document(estimate: Mapping[str, Any], *, served_as: str) -> dict[str, Any] | None:
    """The prediction of an estimate (``trilemma/estimate@1``); None where it states no speed or no load."""
    inputs, speed = estimate.get("inputs"), estimate.get("speed")
    load = inputs.get("workload") if isinstance(inputs, Mapping) else None
    if not isinstance(inputs, Mapping) or not isinstance(speed, Mapping) or not isinstance(load, Mapping):
        return None
    isl, osl = load.get("isl"), load.get("osl")
    concurrency = load.get("concurrency") or speed.get("batch")
    if not all(isinstance(value, int | float) and value > 0 for value in (isl, osl, concurrency)):
        return None
    numbers = {"isl": int(isl or 0), "osl": int(osl or 0), "concurrency": int(concurrency or 0)}
    engine = inputs["plan"]["engine"]["name"]
    words = numbers | {"model": shlex.quote(served_as), "prompts": numbers["concurrency"] * _ROUNDS}
    return {
        "schema": SCHEMA,
        "model": inputs["model"]["name"],
        "cluster": inputs["cluster"],
        "plan": inputs["plan"],
        "workload": numbers,
        "predicted": {name: speed[name] for name in _FIGURES if name in speed},
        "benchmark": _BENCHES.get(engine, _OTHER_BENCH).format(**words),
    }


def read_prediction(path: str | Path) -> Prediction:
    """Raises `InputError` for files that are not a prediction."""
    name = shorten(str(path))
    try:
        document = json.loads(read_text(Path(path), most_bytes=_MOST_BYTES))
        if document["schema"] != SCHEMA:
            raise ValueError("schema")
        cluster, load = document["cluster"], document["workload"]
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
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise InputError(f"{name} is not a prediction; give the {FILE} that trilemma export wrote") from None
