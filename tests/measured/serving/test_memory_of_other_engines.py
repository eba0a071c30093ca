"""Start-ups of SGLang, TensorRT-LLM and llama.cpp as public logs print them, each row with its source."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from trilemma.measured.judgement import Judgement
from trilemma.measured.serving.memory.judge import judge
from trilemma.measured.tables import Row, read_table

TABLE = Path(__file__).parents[2] / "data" / "serving_memory_engines.csv"


@cache
def judgements() -> list[Judgement]:
    return judge(read_table(TABLE).rows)[0]


def errors(metric: str) -> dict[str, list[float]]:
    """Engine → |predicted − measured| / measured of every row that states the figure."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in judgements():
        for figure in one.comparisons:
            if figure.metric == metric:
                found[one.classes["program"]].append(abs(figure.predicted / figure.measured - 1))
    return found


def row(**cells: str) -> Row:
    return Row(id="row", line=1, cells=cells)


def test_every_row_is_judged() -> None:
    assert [one.row_id for one in judgements() if one.skipped] == []


@pytest.mark.parametrize(
    ("engine", "rows", "bar"), [("llama.cpp", 28, 0.0005), ("tensorrt-llm", 12, 0.01), ("sglang", 20, 0.01)]
)
def test_pools(engine: str, rows: int, bar: float) -> None:
    """From our own budget, which for gemma-4 under SGLang holds its embedding whole on every rank."""
    found = errors("kv_cache_gib_per_gpu")[engine]
    assert len(found) >= rows
    assert median(found) <= bar


def test_pools_of_all_engines_and_tokens_of_a_known_pool() -> None:
    pools = [error for found in errors("kv_cache_gib_per_gpu").values() for error in found]
    assert len(pools) >= 60
    assert median(pools) <= 0.005
    tokens = [error for found in errors("kv_cache_tokens_given_bytes").values() for error in found]
    assert max(tokens) <= 0.002


@pytest.mark.parametrize(("engine", "bar"), [("llama.cpp", 0.01), ("tensorrt-llm", 0.02)])
def test_weights(engine: str, bar: float) -> None:
    assert median(errors("weights_gib_per_gpu")[engine]) <= bar


def test_engines_built_ahead_hold_tied_embeddings_twice() -> None:
    """Qwen2.5-0.5B in FP16: 1,215 MiB of engine (clark-s-dev/triton-trtllm-text-io), 942 as the checkpoint stores it."""
    told = {
        "engine": "tensorrt-llm",
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "gpu": "NVIDIA L4",
        "tp": "1",
        "quantization": "none",
    }
    built = row(**told, other_flags="backend=tensorrt", weights_gib_per_gpu="1.187")
    run = row(**told, other_flags="backend=pytorch", weights_gib_per_gpu="0.920")
    for one in judge([built, run])[0]:
        (weights,) = [figure for figure in one.comparisons if figure.metric == "weights_gib_per_gpu"]
        assert weights.predicted == pytest.approx(weights.measured, rel=0.015)


def test_flags_of_the_engine_count_and_others_are_listed() -> None:
    """Tokens of a windowed pool by ``--swa-full-tokens-ratio``; what no engine knows is left out aloud."""
    told = {
        "engine": "sglang",
        "engine_version": "0.5.12",
        "model": "google/gemma-4-31B-it",
        "gpu": "rtx-pro-6000-blackwell",
        "tp": "1",
        "kv_cache_tokens": "1",
        "max_model_len": "8192",
    }
    wide, narrow, odd = judge(
        [
            row(**told, other_flags=f"{flag}")
            for flag in ("swa-full-tokens-ratio=0.8", "swa-full-tokens-ratio=0.1", "no-such-flag=3")
        ]
    )[0]
    tokens = [next(f.predicted for f in one.comparisons if f.metric == "kv_cache_tokens") for one in (wide, narrow)]
    # 109,120 and 24,248 tokens of one pool on two RTX 3090 (mattbucci/2x-3090-GA102-300-A1-sglang-inference).
    assert tokens[1] / tokens[0] == pytest.approx(109120 / 24248, rel=0.001)
    assert any("no_such_flag" in note for note in odd.assumed)


def test_a_flag_that_cannot_be_read_is_a_reason() -> None:
    told = {"engine": "sglang", "model": "Qwen/Qwen3-0.6B", "gpu": "rtx-4090", "tp": "1", "outcome": "ok"}
    (one,) = judge([row(**told, other_flags="swa-full-tokens-ratio=half")])[0]
    assert "other_flags swa_full_tokens_ratio 'half'" in one.skipped
