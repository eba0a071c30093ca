"""One answer, three renderings: every figure on the screen and in a chart is that of the document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from asking import chart, document, panel, rows, screen
from trilemma.hardware.catalogue import find
from trilemma.quantities import GIB

FITS = (
    "fit llama-3.1-8b --gpu h100-sxm:2 --isl 1000 --osl 300 --concurrency 8",
    "fit qwen3-30b-a3b --gpu h200-sxm:2 --engine sglang --isl 2000 --osl 200 --concurrency 32",
    "fit gemma-3-12b --gpu h100-sxm --engine tensorrt-llm --isl 1000 --osl 100 --concurrency 4",
    "fit llama-3.1-8b --gpu rtx-4090 --engine llama.cpp --isl 500 --osl 100 --concurrency 1",
    "fit llama-3.1-8b --gpu a100-sxm4-80gb --engine transformers --isl 500 --osl 100 --concurrency 1",
)
TRAINED = "fit llama-3.1-8b --gpu h100-sxm:8 --train 4096 --global-batch 64 --zero 2"
COMPARED = "compare llama-3.1-8b --gpu h100-sxm --gpu l40s --serve 1000/300 --concurrency 8"
PLANNED = "plan llama-3.1-8b --gpu h100-sxm:4 --serve 2000/300 --tpot 20"
PLANNED_TRAINING = "plan llama-3.1-8b --gpu h100-sxm:8 --train 4096 --global-batch 64"

answer = cache(document)
told = cache(screen)


def near(value: float) -> Any:
    """Documents round to six digits."""
    return pytest.approx(value, rel=2e-5, abs=1e-12)


def bounds(row: Mapping[str, Any], field: str = "value") -> tuple[float, float, float]:
    return row[field], row[f"{field}_low"], row[f"{field}_high"]


def interval(figure: Mapping[str, float], scale: float = 1.0) -> Any:
    return near_all(figure["value"] * scale, figure["low"] * scale, figure["high"] * scale)


def near_all(*values: float) -> Any:
    return pytest.approx(values, rel=2e-5)


def at(text: str, label: str) -> str:
    """The line of the screen that begins so."""
    return next(one for one in text.splitlines() if one.strip().startswith(label))


def shows(line: str, value: float, *, units: float = 0.5) -> bool:
    """Whether a number of the line is ``value``, as far as its digits go: within ``units`` of the last."""
    for number in re.findall(r"[\d,]*\d(?:\.\d+)?", line):
        digits = len(number.partition(".")[2])
        if abs(float(number.replace(",", "")) - value) <= units * 10.0**-digits + 2e-5 * abs(value):
            return True
    return False


# Charts.


@pytest.mark.parametrize(
    ("title", "figure", "scale"),
    [
        ("Throughput", "tokens_per_s_per_gpu", 1.0),
        ("Mean time per output token", "tpot_ms", 1.0),
        ("Mean time to first token", "ttft_ms", 1.0),
    ],
)
def test_chart_of_a_comparison(monkeypatch: pytest.MonkeyPatch, title: str, figure: str, scale: float) -> None:
    spec = chart(COMPARED, monkeypatch)
    plans = [one[kind] for one in answer(COMPARED)["candidates"] for kind in ("published", "best")]
    drawn = rows(panel(spec, title))
    assert len(drawn) == len(plans)
    for row, plan in zip(drawn, plans, strict=True):
        assert bounds(row) == interval(plan["speed"][figure], scale)


def test_chart_of_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = chart(COMPARED, monkeypatch)
    costs = [one[kind]["cost"] for one in answer(COMPARED)["candidates"] for kind in ("published", "best")]
    for row, cost in zip(rows(panel(spec, "Price")), costs, strict=True):
        names = ("usd_per_million_tokens", "usd_per_million_tokens_low", "usd_per_million_tokens_high")
        assert bounds(row) == near_all(*(cost[name] for name in names))
        assert row["label"] == f"{cost['usd_per_million_tokens']:,.2f}"


@pytest.mark.parametrize("words", FITS)
def test_chart_of_memory(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    memory = answer(words)["memory"]
    drawn = rows(panel(chart(words, monkeypatch), "Memory of one GPU"))
    *lines, total = drawn
    sizes = sorted(one["bytes"] / GIB for one in memory["items"] if one["bytes"] > 0)
    assert sorted(row["end"] - row["start"] for row in lines) == pytest.approx(sizes, rel=1e-6, abs=1e-6)
    assert (total["start"], total["end"]) == (0.0, near(memory["total_bytes"] / GIB))
    ends = {one["name"].replace("_", " "): one for one in memory["items"]}
    weights = next(row for row in lines if row["name"] == "weights")
    low = (ends["weights"]["low_bytes"] - ends["weights"]["bytes"]) / GIB
    assert weights["value_low"] - weights["end"] == pytest.approx(low, abs=1e-6)
    assert (total["value_low"], total["value_high"]) == near_all(
        memory["total_low_bytes"] / GIB, memory["total_high_bytes"] / GIB
    )


@pytest.mark.parametrize("words", FITS)
def test_chart_of_a_token(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    speed = answer(words)["speed"]
    *lines, total = rows(panel(chart(words, monkeypatch), "Mean time per output token"))
    sizes = sorted(one["seconds"] * 1e3 for one in speed["lines"] if one["seconds"] > 0)
    assert sorted(row["end"] - row["start"] for row in lines) == pytest.approx(sizes, rel=1e-4, abs=1e-6)
    assert (total["end"], total["value_low"], total["value_high"]) == interval(speed["tpot_ms"])


def test_roofline_points_are_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    words = FITS[0]
    speed, card = answer(words)["speed"], find("h100-sxm")
    names = {"dense": "dense products", "attention": "attention", "lm_head": "output matrix"}
    spec = next(
        one for one in chart(words, monkeypatch)["vconcat"] if "Roofline" in str(one.get("title")) or "roof" in str(one)
    )
    points = spec["layer"][-1]["data"]["values"] if "layer" in spec else []
    found = {row["line"].partition(" (")[0]: row for row in points}
    seen = 0
    for one in speed["operators"]:
        row = found.get(names.get(one["name"], one["name"]))
        if row is None or "flops" not in one:
            continue
        seen += 1
        assert row["tflops"] == near(one["flops"] / one["seconds"] / 1e12)
        assert row["intensity"] == near(one["flops"] / one["bytes"])
        assert row["share"] == near(one["share"])
    assert seen >= 2
    roof = spec["layer"][0]["data"]["values"]
    assert roof[0]["tflops"] == near(roof[0]["intensity"] * card.bandwidth_bytes_per_s.value / 1e12)


def test_chart_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found, spec = answer(PLANNED), chart(PLANNED, monkeypatch)
    drawn = {row["label"]: row for one in walk(spec) for row in one["data"]["values"] if "user_low" in row}
    for rank, plan in enumerate(found["plans"][:5], start=1):
        row = drawn.get(str(rank))
        if row is None:
            continue
        tpot = plan["speed"]["tpot_ms"]
        assert bounds(row, "user") == near_all(1e3 / tpot["value"], 1e3 / tpot["high"], 1e3 / tpot["low"])
        assert bounds(row, "gpu") == interval(plan["speed"]["tokens_per_s_per_gpu"])
    target = next(row for one in walk(spec) for row in one["data"]["values"] if "TPOT" in str(row.get("text")))
    assert target["user"] == 1e3 / 20


def walk(spec: Any) -> Any:
    if isinstance(spec, dict):
        if isinstance(spec.get("data"), dict) and "values" in spec["data"]:
            yield spec
        for value in spec.values():
            yield from walk(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from walk(value)


@pytest.mark.parametrize("words", [TRAINED, PLANNED_TRAINING])
def test_chart_of_a_training_step(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    found, spec = answer(words) if words == TRAINED else answer(words)["plans"][0], chart(words, monkeypatch, code=None)
    *lines, total = rows(panel(spec, "Where the time of a step goes"))
    sizes = sorted(one["seconds"] for one in found["speed"]["lines"] if one["seconds"] > 0)
    assert sum(row["end"] - row["start"] for row in lines) == pytest.approx(sum(sizes), rel=1e-4)
    assert (total["end"], total["value_low"], total["value_high"]) == interval(found["speed"]["step_s"])
    memory = found["memory"]
    *kept, whole = rows(panel(spec, "Memory of one GPU"))
    sizes = sorted(one["bytes"] / GIB for one in memory["items"] if one["bytes"] > 0)
    assert sorted(row["end"] - row["start"] for row in kept) == pytest.approx(sizes, rel=1e-6)
    assert whole["end"] == near(memory["total_bytes"] / GIB)


def test_chart_of_the_way_from_a_naive_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = answer(PLANNED_TRAINING)["waterfall"]
    drawn = rows(panel(chart(PLANNED_TRAINING, monkeypatch), "From a naive plan"))
    before = None
    for number, (row, step) in enumerate(zip(drawn, steps, strict=True), start=1):
        assert row["name"] == f"{number}. {step['change']}"
        assert row["seconds"] == near(step["step_s"])
        assert row["memory"] == f"{step['device_bytes'] / GIB:.1f} GiB"
        assert row["kind"] == ("fits" if step["fits"] else "does not fit")
        assert row["change"] == ("" if before is None else f"{step['step_s'] / before - 1:+.1%}")
        before = step["step_s"]


# The screen.


@pytest.mark.parametrize("words", FITS)
def test_screen_of_memory(words: str) -> None:
    text, memory = told(words), answer(words)["memory"]
    shown = {"kv_cache": "KV cache pool", "weights": "weights", "activations": "activations", "logits": "logits"}
    for item in memory["items"]:
        label = shown.get(item["name"])
        if label is None or item["bytes"] < 0.005 * GIB:
            continue
        line = at(text, label + " ")
        assert f" {item['bytes'] / GIB:.2f} " in line
        assert f"{item['low_bytes'] / GIB:.2f} – {item['high_bytes'] / GIB:.2f}" in line or "exact" in line
        assert ("outside the budget" in line) == (item["budget"] == "outside")
    total = at(text, "total ")
    assert f" {memory['total_bytes'] / GIB:.2f} " in total
    assert f"{memory['total_low_bytes'] / GIB:.2f} – {memory['total_high_bytes'] / GIB:.2f}" in total
    card = at(text, "card ")
    for figure in (memory["capacity_bytes"], memory["usable_bytes"], abs(memory["headroom_bytes"])):
        assert f"{figure / GIB:.2f} GiB" in card


@pytest.mark.parametrize("words", FITS)
def test_screen_of_speed_and_price(words: str) -> None:
    text, found = told(words), answer(words)
    speed, cost = found["speed"], found.get("cost")
    first = at(text, "speed")
    for name, lead in (("ttft_ms", "first token"), ("tpot_ms", "then")):
        figures = re.search(rf"{lead} ([\d.,]+) m?s \(([\d.,]+) – ([\d.,]+)\)", first)
        assert figures is not None, first
        shown = [float(one.replace(",", "")) for one in figures.groups()]
        scale = 1.0 if f"{lead} {figures.group(1)} ms" in first else 1e-3
        expected = [speed[name][end] * scale for end in ("value", "low", "high")]
        assert shown == pytest.approx(expected, abs=0.06)
    assert f"at batch {speed['batch']:,.0f}" in first
    rate = at(text, f"{speed['output_tokens_per_s']['value']:,.0f} output tokens/s")
    per_gpu = speed["tokens_per_s_per_gpu"]
    assert f"{per_gpu['value']:,.0f} per GPU ({per_gpu['low']:,.0f} – {per_gpu['high']:,.0f})" in rate
    if cost is not None:
        price, tokens = at(text, "cost"), next(one for one in text.splitlines() if "per million output tokens" in one)
        for line, name in ((price, "usd_per_hour"), (tokens, "usd_per_million_tokens")):
            assert all(shows(line, cost[f"{name}{end}"]) for end in ("", "_low", "_high")), line
    cache_of = found["kv_cache"]
    pool = at(text, "KV cache  ")
    assert f"{cache_of['tokens']:,} tokens" in pool
    assert f"{cache_of['bytes_per_token_per_gpu']:,.0f} B each" in pool


@pytest.mark.parametrize("words", FITS)
def test_screen_of_the_operators(words: str) -> None:
    text, speed = told(words), answer(words)["speed"]
    shown = {"dense": "dense products", "attention": "attention", "kernels": "kernel launches", "host": "host, a step"}
    for one in speed["operators"]:
        line = next((row for row in text.splitlines() if row.startswith(shown.get(one["name"], "?") + " ")), None)
        if line is None:
            continue
        assert shows(line, one["seconds"] * 1e3, units=1.0)  # milliseconds are rounded so that they add up
        assert f" {one['share']:.0%} " in line.replace("%", "% ")
        if "fraction_of_roof" in one:
            assert f"{one['fraction_of_roof']:.0%}" in line
        assert one["bound_by"].replace("_", " ") in line
    assert shows(at(text, "TPOT"), speed["tpot_ms"]["value"])


def test_screen_of_a_training_step() -> None:
    text, found = screen(TRAINED, code=None), answer(TRAINED)
    speed = found["speed"]
    step, per_gpu = speed["step_s"], speed["tokens_per_s_per_gpu"]
    assert f"step       {step['value']:.3f} s ({step['low']:.3f} – {step['high']:.3f})" in text
    assert f"{per_gpu['value']:,.0f} tokens/s per GPU ({per_gpu['low']:,.0f} – {per_gpu['high']:,.0f})" in text
    assert shows(at(text, f"{per_gpu['value']:,.0f} tokens/s per GPU").partition("),")[2], 8 * per_gpu["value"])
    assert f"MFU {speed['mfu']['value']:.1%}, HFU {speed['hfu']['value']:.1%}" in text
    hidden = found["training_step"]["hidden_comm_fraction"]
    assert (
        f"communication exposed {speed['comm_fraction']['value']:.1%}, hidden {hidden:.1%},"
        f" bubble {speed['bubble_fraction']['value']:.1%}"
    ) in text
    for line in speed["lines"]:
        if line["seconds"] / step["value"] > 0.01:
            assert f"{line['seconds']:.3f} s" in at(text[text.index("step  ") :], line["name"].replace("_", " ") + " ")


def degrees(layout: Mapping[str, int]) -> str:
    """``TP4 PP8``: degrees of one are not worth a word."""
    named = [f"{name.upper()}{layout[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "dp") if layout[name] > 1]
    return " ".join(named) or "one GPU"


def test_screen_of_a_training_search() -> None:
    text, found = told(PLANNED_TRAINING), answer(PLANNED_TRAINING)
    for rank, plan in enumerate(found["plans"][:5], start=1):
        line = at(text, f"{rank}  ")
        words = degrees(plan["inputs"]["plan"]["layout"])
        assert re.match(rf"{rank}  {re.escape(words)}  ", line), line
        speed = plan["speed"]
        assert shows(line, speed["step_s"]["value"])
        assert shows(line, speed["tokens_per_s_per_gpu"]["value"])
        assert f" {speed['mfu']['value']:.1%} " in line
        assert f" ${plan['cost']['usd_per_million_tokens']:.4f} " in line
        assert f"{plan['verdict']['probability']:.0%}" in line
    assert f"{found['searched']:,} plans looked at" in text
    assert f"{found['legal']:,} legal, {found['fitting']:,} fit" in text
    for one in found["rejected"]:
        assert f" {one['count']:,}  {one['why'][:40]}" in text
    for one in found["sensitivity"]:
        assert f"{one['gain']:.1%} less time ({one['step_s']:.2f} s)" in text
    for step in found["waterfall"]:
        line = at(text, step["change"])
        assert f" {step['step_s']:.2f} " in line
        assert f" {step['device_bytes'] / GIB:.1f} " in line


def test_screen_of_a_search() -> None:
    text, found = told(PLANNED), answer(PLANNED)
    for rank, plan in enumerate(found["plans"][:5], start=1):
        line = at(text, f"{rank}  ")
        speed = plan["speed"]
        assert f" {speed['tokens_per_s_per_gpu']['value']:,.0f} " in line
        assert f" {1e3 / speed['tpot_ms']['value']:.1f} " in line
        assert f" ${plan['cost']['usd_per_million_tokens']:.2f} " in line
        assert plan["bottleneck"]["resource"].replace("_", " ") in line
    assert f"searched {found['searched']:,} plans" in text
    assert f"{found['legal']:,} legal, {found['fitting']:,} fit" in text


def test_screen_of_a_comparison() -> None:
    text = told(COMPARED).splitlines()
    plans = [one[kind] for one in answer(COMPARED)["candidates"] for kind in ("published", "best")]
    begins = next(number for number, line in enumerate(text) if line.startswith("GPUs "))
    lines = text[begins + 2 : begins + 2 + 2 * len(plans)]
    for line, ranges, plan in zip(lines[::2], lines[1::2], plans, strict=True):
        speed = plan["speed"]
        rate, tpot, cost = speed["tokens_per_s_per_gpu"], speed["tpot_ms"], plan["cost"]
        assert f" {rate['value']:,.0f} " in line
        assert f"{rate['low']:,.0f} – {rate['high']:,.0f}" in ranges
        assert f" {1e3 / tpot['value']:,.1f} " in line
        assert f"{1e3 / tpot['high']:,.1f} – {1e3 / tpot['low']:,.1f}" in ranges
        assert f" {tpot['value']:,.1f} ms" in line
        assert f"{tpot['low']:,.1f} – {tpot['high']:,.1f}" in ranges
        assert f"${cost['usd_per_million_tokens']:,.2f}" in line
        assert f" {plan['power']['joules_per_token']:.2f} " in line


@pytest.mark.parametrize("words", FITS)
def test_times_of_a_token_have_four_digits(words: str) -> None:
    shown = at(told(words), "TPOT").split()[1]
    assert len(shown.replace(".", "").lstrip("0")) == 4
    assert shows(shown, answer(words)["speed"]["tpot_ms"]["value"])
