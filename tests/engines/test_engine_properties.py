"""What holds of every serving engine: releases by date, peaks of loading, fractions that just start, defaults by pipeline."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.verdict import likeliest
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions

_FILES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llama_cpp"}


def start(
    engine: str, layout: Layout | None = None, *, gpu: str = "h100-sxm", free: float | None = None, **more: Any
) -> StartUp:
    facts = {name: more.pop(name) for name in ("version", "date") if name in more}
    return engines.get(engine).start_up(
        model=load_model(more.pop("model", "llama-3.1-8b")), accelerator=find(gpu), layout=layout or Layout(),
        options=ServeOptions(**more), free_bytes=free, **facts,
    )  # fmt: skip


def releases(engine: str) -> list[dict[str, Any]]:
    text = files("trilemma.data").joinpath("engines", f"{_FILES[engine]}.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["release"]
    return found


@pytest.mark.parametrize("engine", _FILES)
@pytest.mark.parametrize(
    ("date", "day"), [("2025-06-20", "2025-06-20"), ("2025-06", "2025-06-15"), ("2025", "2025-07-01")]
)
def test_a_date_means_the_release_that_was_out(engine: str, date: str, day: str) -> None:
    out = [row["version"] for row in releases(engine) if str(row["date"]) <= day]
    expected = str(out[-1]).lstrip("b")
    assert start(engine, date=date, context=2048).version.lstrip("b").startswith(expected)


@pytest.mark.parametrize("engine", _FILES)
def test_the_peak_of_loading_is_what_lies_on_the_card_before_the_pool(engine: str) -> None:
    for layout in (Layout(), Layout(tp=2) if engine != "llama.cpp" else Layout(pp=2)):
        found = start(engine, layout, context=2048)
        names = ("weights", "vision", "draft_model", "context", "communication")
        held = sum(float(found.ledger[name].bytes) for name in names if found.ledger.get(name) is not None)
        assert float(found.load_peak_bytes) == pytest.approx(held)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_fractions_between_the_bounds_start_and_others_do_not(engine: str) -> None:
    bounds = engines.get(engine).feasible_fraction(start(engine, gpu="l40s", context=4096))
    assert bounds is not None
    low, high = bounds
    assert 0 < low < high <= 1
    assert likeliest(start(engine, gpu="l40s", context=4096, memory_fraction=round(low + 0.02, 4)))[0] == "ok"
    assert likeliest(start(engine, gpu="l40s", context=4096, memory_fraction=round(low - 0.05, 4)))[0] != "ok"
    if high < 0.98:
        assert likeliest(start(engine, gpu="l40s", context=4096, memory_fraction=round(high - 0.02, 4)))[0] == "ok"
        assert likeliest(start(engine, gpu="l40s", context=4096, memory_fraction=round(high + 0.02, 4)))[0] != "ok"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_several_ranks_set_up_communicators(engine: str) -> None:
    one, two, four = (float(start(engine, Layout(tp=tp)).ledger["context"].bytes) for tp in (1, 2, 4))
    assert one < two == four


@pytest.mark.parametrize(
    ("layout", "ranks"), [(Layout(tp=2), 2), (Layout(tp=2, pp=2), 4), (Layout(pp=2), 2), (Layout(), 1)]
)
def test_sglang_reserves_by_ranks_of_all_stages(layout: Layout, ranks: int) -> None:
    # server_args.py 0.4.8 to 0.5.1: 9,728 MiB and 512 for each rank of a card of 81,559 MiB.
    share = round((81559 - 9728 - 512 * ranks) / 81559, 3)
    assert float(start("sglang", layout, version="0.4.8").memory_fraction) == pytest.approx(share)


@pytest.mark.parametrize("engine", [name for name in _FILES if name != "vllm"])  # whose share is of the whole card
def test_memory_that_others_hold_is_no_room(engine: str) -> None:
    whole = start(engine, context=2048)
    part = start(engine, context=2048, free=0.5 * float(whole.capacity_bytes))
    assert float(part.pool.available_bytes) < float(whole.pool.available_bytes)
    assert float(part.capacity_bytes) == float(whole.capacity_bytes)
