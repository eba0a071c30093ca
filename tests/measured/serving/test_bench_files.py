"""Benchmark results as their tools write them, and files that are broken, hostile or in the wrong unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trilemma.errors import InputError
from trilemma.measured.serving.deployment.bench_files import MOST_POINTS, Point, read_points

VLLM = {
    "model_id": "m", "num_prompts": 40, "request_rate": "inf", "max_concurrency": 4, "completed": 40,
    "total_input_tokens": 40_960, "total_output_tokens": 20_480, "mean_ttft_ms": 51.5, "mean_tpot_ms": 9.25,
}  # fmt: skip
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                name: {"successful": {"mean": value, "median": 0.0}}
                for name, value in (
                    ("prompt_token_count", 512.0), ("output_token_count", 256.0), ("request_concurrency", 7.8),
                    ("time_to_first_token_ms", 80.0), ("inter_token_latency_ms", 11.0),
                )
            }
        }
    ]
}  # fmt: skip
AIPERF = {
    "input_config": {"loadgen": {"concurrency": 16}},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "time_to_first_token": {"unit": "ms", "avg": 120.0, "p99": 400.0},
    "inter_token_latency": {"unit": "ms", "avg": 14.0},
}


def write(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "bench"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_vllm_and_sglang_results_are_read_as_they_are(tmp_path: Path) -> None:
    point = Point(isl=1024, osl=512, concurrency=4, ttft_ms=51.5, tpot_ms=9.25, model="m")
    assert read_points([write(tmp_path, VLLM)]) == [point]
    sglang = {key: value for key, value in VLLM.items() if key not in ("model_id", "num_prompts")}
    lines = "\n".join(json.dumps({**sglang, "max_concurrency": load}) for load in (1, 8))
    assert [one.concurrency for one in read_points([write(tmp_path, lines)])] == [1, 8]


def test_requests_all_sent_at_once_are_all_in_flight(tmp_path: Path) -> None:
    assert read_points([write(tmp_path, {**VLLM, "max_concurrency": None})])[0].concurrency == 40


def test_guidellm_and_aiperf_results_are_read_as_they_are(tmp_path: Path) -> None:
    assert read_points([write(tmp_path, GUIDELLM)]) == [
        Point(isl=512, osl=256, concurrency=7.8, ttft_ms=80.0, tpot_ms=11.0)
    ]
    assert read_points([write(tmp_path, AIPERF)]) == [
        Point(isl=1000, osl=200, concurrency=16, ttft_ms=120.0, tpot_ms=14.0)
    ]


def test_a_table_needs_its_columns_and_takes_either_figure(tmp_path: Path) -> None:
    table = "isl,osl,concurrency,tpot_ms\n128,64,2,9\n"
    assert read_points([write(tmp_path, table)]) == [Point(isl=128, osl=64, concurrency=2, tpot_ms=9)]
    with pytest.raises(InputError, match="lacks the columns osl"):
        read_points([write(tmp_path, "isl,concurrency,tpot_ms\n1,2,3\n")])
    with pytest.raises(InputError, match="ttft_ms or tpot_ms"):
        read_points([write(tmp_path, "isl,osl,concurrency\n1,2,3\n")])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean_tpot_ms": 0}, "outside"),
        ({"mean_tpot_ms": -3}, "outside"),
        ({"mean_tpot_ms": "fast"}, "not a number"),
        ({"mean_ttft_ms": 0.3}, "give both in ms"),  # seconds beside milliseconds
        ({"completed": 0}, "completed"),
        ({"total_output_tokens": None}, "total_output_tokens"),
        ({"max_concurrency": None, "request_rate": 4.0}, "requests in flight"),
    ],
)
def test_impossible_figures_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_points([write(tmp_path, {**VLLM, **change})])


@pytest.mark.parametrize(
    "content", ["{", "[1, 2]", '{"a": 1}', '{"benchmarks": [3]}', '{"mean_ttft_ms": NaN}', "\0\0", "[" * 100_000]
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError) as refused:
        read_points([write(tmp_path, content)])
    assert "\n" not in str(refused.value)


def test_a_million_rows_are_refused_soon(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"more than {MOST_POINTS:,}"):
        read_points([write(tmp_path, "isl,osl,concurrency,tpot_ms\n" + "128,64,2,9\n" * 1_000_000)])


def test_runs_at_a_rate_tell_it_and_how_many_were_in_flight(tmp_path: Path) -> None:
    at_rate = {**VLLM, "max_concurrency": None, "request_rate": 2.5, "request_throughput": 2.0}
    (point,) = read_points([write(tmp_path, at_rate)])
    assert point.rate == 2.5
    assert point.concurrency == pytest.approx(2.0 * (51.5 + 511 * 9.25) / 1e3)
    (told,) = read_points([write(tmp_path, {**at_rate, "concurrency": 9.5})])  # SGLang says it itself
    assert (told.rate, told.concurrency) == (2.5, 9.5)
    (capped,) = read_points([write(tmp_path, {**at_rate, "max_concurrency": 4})])
    assert (capped.rate, capped.concurrency) == (None, 4)
    aiperf = {
        **AIPERF,
        "input_config": {"loadgen": {"request_rate": 3.0}},
        "request_throughput": {"unit": "requests/sec", "avg": 3.0},
        "request_latency": {"unit": "ms", "avg": 2000.0},
    }
    (point,) = read_points([write(tmp_path, aiperf)])
    assert (point.rate, point.concurrency) == (3.0, 6.0)
    with pytest.raises(InputError, match="lacks the requests in flight"):
        read_points([write(tmp_path, {**at_rate, "request_throughput": None})])
