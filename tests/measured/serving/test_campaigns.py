"""A campaign that states a layout which cannot hold its model tells nothing by its layouts."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.serving.speed.refit import read_questions
from trilemma.measured.tables import Row


def row(name: str, **cells: str) -> Row:
    plain = {
        "model": "qwen3-235b-a22b", "precision_weights": "fp8", "gpu": "h200_sxm", "gpus": "2", "tp": "2", "engine": "vllm",
        "version": "0.12.0", "isl": "1024", "osl": "512", "concurrency_or_batch": "16", "metric": "tpot_ms", "value": "20",
        "tier": "A", "source_ref": "a/b@c:d.csv", "notes": "origin=x; mode=agg",
    }  # fmt: skip
    return Row(id=name, line=1, cells=plain | cells)


def test_weights_beyond_the_cards_are_refused_and_their_campaign_counts_nothing():
    rows = [
        row("one card", gpus="1", tp="1"),  # 236 GB of weights on a card of 151
        row("same campaign"),
        row("same campaign, another model", model="llama-3.1-8b"),
        row("another release", version="0.13.0"),
        row("another card", gpu="b200_sxm"),
        row("another engine", engine="sglang"),
        row("another origin", notes="origin=y; mode=agg"),
    ]
    refused, *others = read_questions(rows, None)
    assert isinstance(refused, str)
    assert "do not lie in 1 x nvidia-h200-sxm" in refused
    assert all(isinstance(one, SpeedQuestion) for one in others)
    assert [one.trust for one in others] == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert any("counts nothing in fits" in note for note in others[0].assumed)
    trust = {rows[int(at)].id: float(one) for bench in benches_of([refused, *others]) for at, one in
             zip(bench.at, bench.trust, strict=True)}  # fmt: skip
    assert trust["same campaign"] == 0.0
    assert np.count_nonzero(list(trust.values())) == 4


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_what_llama_cpp_cannot_place_stays_on_the_host(engine: str):
    cells = {
        "model": "llama-2-7b",
        "precision_weights": "bf16",
        "gpu": "rtx-3070",
        "gpus": "1",
        "tp": "1",
        "engine": engine,
    }
    question = read_questions([row("7B in 8 GB", **cells)], None)[0]
    assert isinstance(question, SpeedQuestion) == (engine == "llama.cpp")
