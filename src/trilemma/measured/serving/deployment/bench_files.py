"""Results of serving benchmarks as their tools write them: vLLM's and SGLang's bench, GuideLLM, AIPerf, or a CSV table.

Files come from outside: sizes, rows and numbers are bounded, and nothing in them is run.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text

_MOST_BYTES = 64 * 2**20
MOST_POINTS = 10_000
#: What a figure may be: (lowest, highest). Lengths in tokens, times in milliseconds.
_BOUNDS = {
    "isl": (1.0, 1e7),
    "osl": (2.0, 1e7),
    "concurrency": (1.0, 1e5),
    "rate": (1e-6, 1e6),
    "ttft_ms": (1e-2, 1e7),
    "tpot_ms": (1e-3, 1e5),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One load and what was measured under it: mean lengths in tokens, requests in flight, mean latencies in milliseconds.

    ``rate`` is set where requests were sent at so many a second; those in flight are then a result and not a choice.
    """

    isl: float
    osl: float
    concurrency: float
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    model: str | None = None
    rate: float | None = None


def read_points(paths: Sequence[str | Path]) -> list[Point]:
    """Every point of the files, told apart by what they hold.

    Raises `InputError` for files that are too large, hold nothing known, or hold figures that cannot be (zero, negative,
    not finite, seconds given for milliseconds).
    """
    points: list[Point] = []
    for path in paths:
        name = shorten(str(path))
        text = read_text(Path(path), most_bytes=_MOST_BYTES)
        found = _of_json(text, name) if text.lstrip()[:1] in ("{", "[") else _of_csv(text, name)
        for values in found:
            points.append(_point(values, name))
            if len(points) > MOST_POINTS:
                raise InputError(f"{name}: more than {MOST_POINTS:,} points; give a sample of them")
    return points


def _point(values: Mapping[str, Any], name: str) -> Point:
    numbers = {figure: _number(values.get(figure), figure, name) for figure in _BOUNDS}
    for figure in ("isl", "osl", "concurrency"):
        if numbers[figure] is None:
            raise InputError(f"{name}: a point lacks {_WORDS[figure]}")
    ttft, tpot = numbers["ttft_ms"], numbers["tpot_ms"]
    if ttft is None and tpot is None:
        raise InputError(f"{name}: a point has neither time to first token nor time per output token")
    if ttft is not None and tpot is not None and ttft < tpot / 20:
        raise InputError(
            f"{name}: time to first token {ttft:g} ms is below a twentieth of {tpot:g} ms per token; give both in ms"
        )
    model = values.get("model")
    return Point(
        isl=numbers["isl"] or 0.0, osl=numbers["osl"] or 0.0, concurrency=numbers["concurrency"] or 0.0,
        ttft_ms=ttft, tpot_ms=tpot, model=model[:300] if isinstance(model, str) else None,
        rate=numbers["rate"],
    )  # fmt: skip


_WORDS = {
    "isl": "the prompt length (isl)",
    "osl": "the output length (osl)",
    "concurrency": "the requests in flight (concurrency; benchmark with a fixed concurrency)",
}


def _number(value: Any, figure: str, name: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: {figure} {shorten(str(value))!r} is not a number") from None
    low, high = _BOUNDS[figure]
    if not math.isfinite(number) or not low <= number <= high:
        raise InputError(f"{name}: {figure} {number:g} is outside {low:g} to {high:g}; times are in milliseconds")
    return number


def _of_json(text: str, name: str) -> Iterator[dict[str, Any]]:
    for document in _documents(text, name):
        if not isinstance(document, Mapping):
            raise InputError(f"{name}: not a benchmark result")
        if isinstance(document.get("benchmarks"), list):
            yield from (_guidellm(one, name) for one in document["benchmarks"])
        elif "mean_ttft_ms" in document or "mean_tpot_ms" in document:
            yield _bench(document, name)
        elif "time_to_first_token" in document or "inter_token_latency" in document or "records" in document:
            yield _aiperf(document)
        else:
            raise InputError(
                f"{name}: not a result of vllm bench serve, sglang.bench_serving, GuideLLM or AIPerf, nor a CSV table"
            )


def _documents(text: str, name: str) -> list[Any]:
    """One JSON document, a list of them, or one a line (SGLang appends)."""
    try:
        document = json.loads(text, parse_constant=_refuse)
        return document if isinstance(document, list) else [document]
    except (ValueError, RecursionError):
        pass
    try:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > MOST_POINTS:
            raise InputError(f"{name}: more than {MOST_POINTS:,} lines; give a sample of them")
        return [json.loads(line, parse_constant=_refuse) for line in lines]
    except (ValueError, RecursionError):
        raise InputError(f"{name}: neither JSON nor one JSON object a line") from None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _bench(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    """``vllm bench serve --save-result`` and ``sglang.bench_serving --output-file`` share these names."""
    done = _number_above_zero(result.get("completed"), "completed", name)
    concurrency = result.get("max_concurrency") or result.get("concurrency")
    requests = result.get("num_prompts") or result.get("completed")
    osl = _number_above_zero(result.get("total_output_tokens"), "total_output_tokens", name) / done
    rate = result.get("request_rate")
    if str(rate) in ("inf", "Infinity", "None") or result.get("max_concurrency"):
        # All sent at once, or as many in flight as were asked for, however fast they were sent.
        concurrency = concurrency or (requests if rate is not None else None)
        rate = None
    elif concurrency is None:
        ttft, tpot = (_plain(result.get(key)) for key in ("mean_ttft_ms", "mean_tpot_ms"))
        stays = None if ttft is None or tpot is None else ttft + (osl - 1) * tpot
        concurrency = _stayed(result.get("request_throughput"), stays)
    return {
        "rate": rate,
        "isl": _number_above_zero(result.get("total_input_tokens"), "total_input_tokens", name) / done,
        "osl": osl,
        "concurrency": concurrency,
        "ttft_ms": result.get("mean_ttft_ms"),
        "tpot_ms": result.get("mean_tpot_ms", result.get("mean_itl_ms")),
        "model": result.get("model_id"),
    }


def _stayed(per_s: Any, stays_ms: Any) -> float | None:
    """Mean requests in flight of a run that sent them at a rate: those answered a second times how long each stayed."""
    answered, stays = _plain(per_s), _plain(stays_ms)
    return None if answered is None or stays is None else max(answered * stays / 1e3, 1.0)


def _plain(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def _number_above_zero(value: Any, what: str, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise InputError(f"{name}: {what} {shorten(str(value))!r} is not a number above 0")
    return float(value)


def _guidellm(benchmark: Any, name: str) -> dict[str, Any]:
    metrics = benchmark.get("metrics") if isinstance(benchmark, Mapping) else None
    if not isinstance(metrics, Mapping):
        raise InputError(f"{name}: a benchmark without metrics")

    def mean(metric: str) -> Any:
        return _inside(metrics, metric, "successful", "mean")

    return {
        "isl": mean("prompt_token_count"),
        "osl": mean("output_token_count"),
        "concurrency": mean("request_concurrency"),
        "ttft_ms": mean("time_to_first_token_ms"),
        "tpot_ms": mean("inter_token_latency_ms"),
    }


def _aiperf(result: Mapping[str, Any]) -> dict[str, Any]:
    nested = result.get("records")
    records: Mapping[str, Any] = nested if isinstance(nested, Mapping) else result

    def average(*names: str) -> Any:
        return next((found for name in names if (found := _inside(records, name, "avg")) is not None), None)

    at_once, rate = (_inside(result, "input_config", "loadgen", key) for key in ("concurrency", "request_rate"))
    if not at_once and rate:
        at_once = _stayed(average("request_throughput"), average("request_latency"))
    else:
        rate = None
    return {
        "isl": average("input_sequence_length", "isl"),
        "osl": average("output_sequence_length", "osl"),
        "concurrency": at_once,
        "rate": rate,
        "ttft_ms": average("time_to_first_token", "ttft"),
        "tpot_ms": average("inter_token_latency", "itl"),
    }


def _inside(value: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _of_csv(text: str, name: str) -> Iterator[dict[str, Any]]:
    """A table with the columns isl, osl, concurrency and ttft_ms or tpot_ms."""
    if "\0" in text:
        raise InputError(f"{name}: holds NUL bytes; give CSV or the JSON file of a benchmark")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = {column.strip().lower() for column in reader.fieldnames or ()}
        missing = [column for column in ("isl", "osl", "concurrency") if column not in columns]
        if missing or not columns & {"ttft_ms", "tpot_ms"}:
            wanted = ", ".join(missing) or "ttft_ms or tpot_ms"
            raise InputError(f"{name}: lacks the columns {wanted}; a table has isl, osl, concurrency, ttft_ms, tpot_ms")
        for row in reader:
            yield {column.strip().lower(): value for column, value in row.items() if isinstance(column, str)}
    except csv.Error as error:
        raise InputError(f"{name}: line {reader.line_num} is not CSV: {error}") from None
