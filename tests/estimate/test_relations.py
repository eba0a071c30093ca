"""Relations between answers, held to random questions: a small form of ``scripts/relations.py``."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import trilemma as tl


@pytest.fixture(scope="module")
def runs() -> Iterator[ModuleType]:
    scripts = str(Path(__file__).parents[2] / "scripts")
    sys.path.insert(0, scripts)
    yield import_module("relations.runs")
    sys.path.remove(scripts)


def test_relations_hold_for_random_questions(runs: ModuleType) -> None:
    found = runs.run(200, seed=7)
    assert sum(tally.tried for tally in found.values()) > 300
    assert {name: tally.broken for name, tally in found.items() if tally.broken} == {}


@pytest.mark.parametrize(
    "name",
    [
        "no upgrade from itself", "its command checked gives the same", "plan and compare agree", "best plan asked again",
        "no phase above the roof", "twice of all is twice", "training: no mfu above one",
    ],
)  # fmt: skip
def test_relations_are_really_asked(runs: ModuleType, name: str) -> None:
    tally = runs.run(12, seed=3, only=name)[name]
    assert tally.tried > 0
    assert tally.broken == []


def test_lines_of_trainings_sum_to_the_byte() -> None:
    for model, gpus, options in (
        ("llama-3.1-8b", 8, {}), ("qwen3-30b-a3b", 64, {"tp": 4, "ep": 8}), ("llama-3.1-70b", 64, {"tp": 8, "pp": 2}),
    ):  # fmt: skip
        memory = tl.fit(model, f"h100-sxm:{gpus}", seq=4096, global_batch=128, **options).to_dict()["memory"]
        assert sum(line["bytes"] for line in memory["items"]) == memory["total_bytes"]
        assert memory["total_low_bytes"] <= memory["total_bytes"] <= memory["total_high_bytes"]


def test_no_yes_beside_more_than_the_card_has() -> None:
    """Lines that sum to more than the 22.07 GiB of the card: peaks and graphs may never meet, and yet it is no yes."""
    found = tl.fit(
        "deepseek-r1-distill-qwen-14b", "a10:8", isl=32000, osl=1024, concurrency=4, engine="sglang", tp=2, pp=4,
        memory_fraction=0.965,
    )  # fmt: skip
    assert found.memory.total.value > found.memory.capacity_bytes
    assert not found.fits
    assert found.verdict.probability >= 0.5


def test_bytes_of_a_token_fall_where_windows_are_full() -> None:
    """gpt-oss on llama.cpp: beyond 640 tokens (a window of 128 and a batch of 512) its 18 windowed layers take no more, so a
    token costs less, and one request of full length still more in all."""
    short, long = (
        tl.fit("gpt-oss-120b", "rtx-5090:4", engine="llama.cpp", isl=500, osl=128, concurrency=16, context=context)
        for context in (628, 1256)
    )
    assert short.cache is not None
    assert long.cache is not None
    assert long.cache.bytes_per_token < short.cache.bytes_per_token
    needs = [answer.start_up["needed_for_one_request_gib"] for answer in (short, long)]
    assert needs[1] >= needs[0]
