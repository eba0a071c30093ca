"""Verdicts of made-up starts against normal law of the standard library: each stage, each bound, each share of a card."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from trilemma.engines import verdict
from trilemma.engines.base import KvPool, StartUp
from trilemma.errors import TrilemmaError
from trilemma.memory.ledger import MEMORY_LINES, Ledger, Line

#: 90 % of a normal variable lie within this many standard deviations.
NINETY = 1.645
CARD, BUDGET = 1000.0, 900.0


def line(name: str, size: float, half: float = 0.0, budget: Any = "inside") -> Line:
    return Line(name=name, bytes=size, low=size - half, high=size + half, budget=budget)


def made(*, lines: tuple[Line, ...] | None = None, **more: Any) -> StartUp:
    """700 of 1,000 bytes held inside a budget of 900, 50 outside; 200 left for a cache of which a request takes 40."""
    pool = {name: more.pop(name) for name in list(more) if name in KvPool.__dataclass_fields__}
    plain: dict[str, Any] = {
        "available_bytes": 200.0, "available_low_bytes": 150.0, "available_high_bytes": 250.0, "blocks": 100,
         "block_size": 16,
        "tokens": 1600, "concurrency": 5.0, "need_bytes": 40.0, "bytes_per_token_per_gpu": 0.125, "max_context": 1600,
    }  # fmt: skip
    start: dict[str, Any] = {
        "ledger": Ledger(lines=lines or (
            line("weights", 500, 10), line("activations", 150), line("logits", 50), line("kv_cache", 200),
            line("cuda_graphs", 30, 8, "outside"), line("context", 20, 6, "outside"),
        )),
        "capacity_bytes": CARD, "budget_bytes": BUDGET, "memory_fraction": 0.9, "context": 320, "max_seqs": 8,
        "max_batched_tokens": 64, "kv_format": "bf16", "load_peak_bytes": 520.0, "version": "1", "spread_bytes": 50.0,
    }  # fmt: skip
    return StartUp(pool=KvPool(**{**plain, **pool}), **{**start, **more})


def probable(value: float, half: float) -> float:
    return 1 - NormalDist(value, max(half, 1.0) / NINETY).cdf(0)


#: (change, pool left, least pool, spread, load peak, headroom, peak)
STARTS: list[tuple[dict[str, Any], float, float, float, float, float, float]] = [
    ({}, 200, 40, 50, 520, 50, 200),
    ({"available_bytes": 60.0, "spread_bytes": 30.0}, 60, 40, 30, 520, 50, 200),
    ({"available_bytes": 10.0, "spread_bytes": 30.0}, 10, 40, 30, 520, 50, 200),
    ({"available_bytes": -20.0, "spread_bytes": 30.0}, -20, 40, 30, 520, 50, 200),
    ({"load_peak_bytes": 995.0}, 200, 40, 50, 995, 50, 200),
    ({"load_peak_bytes": 1003.0}, 200, 40, 50, 1003, 50, 200),
    ({"checked_bytes": 195.0}, 200, 195, 50, 520, 50, 200),
    ({"least_blocks": 90}, 200, 180, 50, 520, 50, 200),  # of two bytes each
    ({"need_bytes": 0.0}, 200, 1, 50, 520, 50, 200),
    ({"budget_bytes": 955.0}, 200, 40, 50, 520, -5, 200),
    ({"budget_bytes": 945.0}, 200, 40, 50, 520, 5, 200),
    ({"spread_bytes": 0.0, "available_bytes": 40.5}, 40.5, 40, 0, 520, 50, 200),
    ({"free_bytes": 930.0}, 200, 40, 50, 520, -20, 200),
    ({"free_bytes": 2000.0}, 200, 40, 50, 520, 50, 200),
]


@pytest.mark.parametrize(("change", "left", "least", "spread", "peak_bytes", "headroom", "activations"), STARTS)
def test_the_chance_of_each_stage(
    change: dict[str, Any],
    left: float,
    least: float,
    spread: float,
    peak_bytes: float,
    headroom: float,
    activations: float,
) -> None:
    start = made(**change)
    free = min(CARD, change.get("free_bytes", CARD))
    load = probable(peak_bytes - free, 10)
    none, small = probable(-left, spread), probable(least - left, spread)
    outside = (8**2 + 6**2) ** 0.5
    capture = probable(-headroom - activations, outside)
    runtime = (probable(-headroom, outside) - capture) / 2
    expected = {
        "ok": (1 - load) * (1 - max(small, none)) * (1 - capture - runtime),
        "oom_load": load,
        "oom_profile": (1 - load) * none,
        "kv_too_small": (1 - load) * max(small - none, 0),
        "oom_capture": (1 - load) * (1 - max(small, none)) * capture,
        "oom_runtime": (1 - load) * (1 - max(small, none)) * runtime,
    }
    odds = verdict.stage_probabilities(start)
    assert list(odds) == list(expected)
    for stage, chance in expected.items():
        assert odds[stage] == pytest.approx(chance, abs=6e-7), stage  # type: ignore[index]
    assert sum(odds.values()) == pytest.approx(1)
    worst = max((one for one in expected if one != "ok"), key=lambda one: expected[one])
    good = expected["ok"] >= 0.5
    assert verdict.likeliest(start) == (
        "ok" if good else worst, pytest.approx(expected["ok"] if good else 1 - expected["ok"], abs=6e-7),
    )  # fmt: skip


def test_graphs_that_fit_nowhere() -> None:
    """Without an activation peak there is no room that they could borrow."""
    lines = (line("weights", 700, 10), line("kv_cache", 200), line("cuda_graphs", 105, 8, "outside"))
    start = made(lines=lines)
    chance = probable(5, 8)
    odds = verdict.stage_probabilities(start)
    free = (1 - probable(520 - CARD, 10)) * (1 - probable(-160, 50))
    assert odds["oom_capture"] == pytest.approx(free * chance, abs=1e-6)
    # What is held together, 1,005, is more than the card: as likely as not, whatever the lines' widths.
    assert odds["oom_runtime"] == pytest.approx(free * max(0.0, 0.5 - chance), abs=1e-6)


def test_more_than_the_card_is_never_a_yes() -> None:
    wide = made(
        lines=(
            line("weights", 650, 10),
            line("activations", 150),
            line("kv_cache", 151),
            line("context", 50, 100, "outside"),
        )
    )
    odds = verdict.stage_probabilities(wide)
    assert odds["ok"] == pytest.approx(0.5, abs=1e-3)
    assert verdict.likeliest(wide)[0] == "oom_runtime"
    exact = made(
        lines=(
            line("weights", 650, 10),
            line("activations", 150),
            line("kv_cache", 150),
            line("context", 50, 100, "outside"),
        )
    )
    assert verdict.likeliest(exact)[0] == "ok"


def test_tables_are_rows() -> None:
    left = np.array([200.0, 10.0, -20.0])
    table = made(available_bytes=left, spread_bytes=np.array([50.0, 30.0, 30.0]), budget_bytes=np.full(3, BUDGET))
    stages, chances = verdict.likeliest(table)
    rows = [
        verdict.likeliest(made(available_bytes=one, spread_bytes=half))
        for one, half in zip(left, (50.0, 30.0, 30.0), strict=True)
    ]
    assert list(stages) == [stage for stage, _ in rows] == ["ok", "kv_too_small", "oom_profile"]
    assert chances.tolist() == pytest.approx([chance for _, chance in rows])


@pytest.mark.parametrize(
    ("free", "checked", "refused"),
    [(None, True, False), (899.0, True, True), (900.0, True, False), (899.0, False, False), (901.0, True, False)],
)
def test_a_budget_beyond_what_is_free(free: float | None, checked: bool, refused: bool) -> None:
    start = made(free_bytes=free, budget_checked_at_start=checked)
    assert bool(verdict.budget_refused(start)) is refused
    assert (verdict.stage_probabilities(start)["oom_load"] == 1.0) is refused


#: (change, bounds of the fraction)
BOUNDS: list[tuple[dict[str, Any], tuple[float, float] | None]] = [
    # 700 bytes inside beside the cache, and 40 of it; 50 outside.
    ({}, (0.74, 0.95)),
    ({"checked_bytes": 150.0}, (0.85, 0.95)),
    ({"least_blocks": 50}, (0.8, 0.95)),
    ({"need_bytes": 300.0}, None),
    ({"need_bytes": 250.0}, (0.95, 0.95)),
    ({"free_bytes": 880.0}, (0.74, 0.83)),
    ({"free_bytes": 880.0, "budget_checked_at_start": True}, (0.74, 0.83)),
    ({"free_bytes": 5000.0, "budget_checked_at_start": True}, (0.74, 0.95)),
    # A share of what is free once a worker has its context of 20 bytes.
    ({"fraction_of": "free before loading"}, (0.74 * 1000 / 980, 0.95 * 1000 / 980)),
    ({"fraction_of": "free before loading", "free_bytes": 880.0}, (0.74 * 1000 / 860, 0.83 * 1000 / 860)),
    # A share of what all else leaves: 200 bytes are 0.9 of 222.2, of which a request takes 40.
    ({"fraction_of": "free after loading"}, (40 / (200 / 0.9), 1.0)),
    ({"fraction_of": "free after loading", "available_bytes": -1.0}, None),
    ({"fraction_of": "nothing"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("change", "bounds"), BOUNDS)
def test_fractions_that_start(change: dict[str, Any], bounds: tuple[float, float] | None) -> None:
    found = verdict.feasible_fraction(made(**change))
    assert (found is None) == (bounds is None)
    assert bounds is None or found == pytest.approx(bounds)


def test_fractions_of_a_table() -> None:
    change = {"available_bytes": np.array([200.0, 200.0]), "need_bytes": np.array([40.0, 300.0])}
    low, high = verdict.feasible_fraction(made(**change, budget_bytes=np.full(2, BUDGET))) or (None, None)
    assert low.tolist() == pytest.approx([0.74, 1.0])  # type: ignore[union-attr]
    assert np.broadcast_to(high, 2).tolist() == pytest.approx([0.95, 0.95])
    assert verdict.feasible_fraction(made(fraction_of="nothing", **change)) is None


def test_a_share_without_a_context_line() -> None:
    lines = (
        line("weights", 500, 10),
        line("activations", 200),
        line("kv_cache", 200),
        line("cuda_graphs", 50, 8, "outside"),
    )
    assert verdict.feasible_fraction(made(lines=lines, fraction_of="free before loading")) == pytest.approx(
        (0.74, 0.95)
    )
    full = made(lines=(line("weights", 500, 10), line("kv_cache", 200), line("cuda_graphs", 0, 0, "outside")))
    assert verdict.feasible_fraction(full) == pytest.approx((0.74, 1.0))


def test_ledgers_hold_each_line_once_and_in_order() -> None:
    with pytest.raises(TrilemmaError, match="no memory line is called 'x'"):
        line("x", 1)
    with pytest.raises(TrilemmaError, match="holds each line once"):
        Ledger(lines=(line("weights", 1), line("weights", 2)))
    found = Ledger(lines=tuple(line(name, 10 + at) for at, name in enumerate(reversed(MEMORY_LINES))))
    assert [one.name for one in found] == list(MEMORY_LINES)
    assert found["weights"].bytes == 10 + len(MEMORY_LINES) - 1
    assert found.get("weights") == found["weights"]
    with pytest.raises(KeyError):
        Ledger(lines=())["weights"]
    assert Ledger(lines=()).get("weights") is None
    assert Ledger(lines=()).total() == 0
    assert made().ledger.total() == 950
    assert (made().ledger.total("inside"), made().ledger.total("outside")) == (900, 50)
    rounded = line("weights", 10.4, 1.5)
    assert (rounded.bytes, rounded.low, rounded.high) == (10, 8, 12)
    upside_down = replace(rounded, low=11.0, high=9.0)
    assert (upside_down.low, upside_down.high) == (10, 10)
