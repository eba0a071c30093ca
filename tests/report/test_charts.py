"""Specifications of charts: plain data that says what the answer says; needs no extra."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.estimate.training import estimate_training
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB
from trilemma.question import Question
from trilemma.report.charts import chart_file, comparison_chart, estimate_chart, pareto_chart, training_chart
from trilemma.report.charts.comparison import ticks
from trilemma.report.charts.roofline import decades, roofline
from trilemma.report.comparison import render_comparison
from trilemma.search import search_serving
from trilemma.search.compare import compare
from trilemma.search.training import search_training
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.search.training_questions import waterfall
from trilemma.workloads import Serving, TrainingWorkload

LOAD = Serving(isl=2048, osl=512, concurrency=64, tpot_ms=40)


@cache
def answer(name: str = "llama-3.1-70b", gpu: str = "h200-sxm", gpus: int = 8) -> Estimate:
    pool = Pool(layout=Layout(tp=gpus), options=ServeOptions(context=4096))
    return estimate(Question(
        model=load_model(name), cluster=Cluster.of(find(gpu), gpus), workload=LOAD,
        plan=Plan(engine=EngineRef(), pools=(pool,)),
    ))  # fmt: skip


def walk(spec: Any) -> Iterator[dict[str, Any]]:
    if isinstance(spec, dict):
        yield spec
        for value in spec.values():
            yield from walk(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from walk(value)


def panel(spec: dict[str, Any], title: str) -> dict[str, Any]:
    return next(
        one for one in walk(spec) if str(one.get("title", {}) and one["title"]).find(title) >= 0 and "width" in one
    )


def rows(one: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = one["data"]["values"]
    return found


def test_waterfall_of_a_token_adds_up_to_tpot_with_its_interval() -> None:
    speed = answer().speed
    assert speed is not None
    assert speed.tpot_s is not None
    values = rows(panel(estimate_chart(answer(), find("h200-sxm")), "Mean time per output token"))
    *lines, total = values
    assert [one["start"] for one in lines[1:]] == [one["end"] for one in lines[:-1]]
    assert lines[-1]["end"] == pytest.approx(total["end"])
    interval = speed.tpot_s.interval.scaled(1e3)
    assert (total["end"], total["value_low"], total["value_high"]) == pytest.approx(
        (interval.value, interval.low, interval.high)
    )
    assert {one["colour"] for one in lines} <= {"compute", "memory bandwidth", "interconnect", "host"}


def test_waterfall_of_memory_is_the_ledger_against_the_card() -> None:
    memory = answer().memory
    one = panel(estimate_chart(answer(), find("h200-sxm")), "Memory of one GPU")
    assert rows(one)[-1]["end"] == pytest.approx(memory.total.value / GIB)
    marks = [mark["at"] for layer in one["layer"] for mark in layer.get("data", {}).get("values", [])]
    assert set(marks) == {memory.capacity_bytes / GIB}


def test_roofline_has_the_ceilings_of_the_card_and_no_spec_sheet_point_above_them() -> None:
    card = find("mi300x")
    speed = answer(gpu="mi300x", gpus=4).speed
    assert speed is not None
    spec = roofline(speed.operators, card)
    assert spec is not None
    roof, ends, points = (layer["data"]["values"] for layer in spec["layer"])
    peaks = {one["tflops"] for one in roof if one["format"] != "bandwidth"}
    assert card.peak_flops["bf16"].value / 1e12 in peaks
    assert card.peak_flops["fp8"].value / 1e12 in peaks
    assert any("TB/s" in one["text"] for one in ends)
    assert {one["line"] for one in points} >= {"dense products (bf16)", "attention (bf16)", "prefills of others (bf16)"}
    bandwidth = card.bandwidth_bytes_per_s.value
    for one in points:
        ceiling = min(card.peak_flops["bf16"].value, one["intensity"] * bandwidth) / 1e12
        assert one["tflops"] <= ceiling * (1 + 1e-9), one["line"]


@pytest.mark.parametrize(("low", "high"), [(0.3, 5000.0), (7.0, 40.0), (20.0, 4000.0)])
def test_logarithmic_axes_have_ticks_inside(low: float, high: float) -> None:
    ticks = decades(low, high)
    assert ticks == sorted(ticks)
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) >= 2 or math.log10(high / low) < 1


def test_plan_that_does_not_start_shows_its_memory_alone() -> None:
    spec = estimate_chart(answer(gpu="rtx-4090", gpus=1), find("rtx-4090"))
    assert len(spec["vconcat"]) == 1
    assert "does not fit" in spec["title"]["subtitle"][-1]


def test_title_says_model_card_engine_and_load() -> None:
    title = estimate_chart(answer(), find("h200-sxm"))["title"]
    for words in ("llama-3.1-70b", "8 x H200", "vllm", "TP8"):
        assert words in title["text"]
    assert "prompts of 2,048, outputs of 512 tokens, 64 requests at once" in title["subtitle"][0]


def test_front_holds_the_plans_shown_with_intervals_and_the_target() -> None:
    model, cluster = load_model("llama-3.1-8b"), Cluster.of(find("h100-sxm"), 4)
    result = search_serving(model, cluster, Serving(isl=1024, osl=256, tpot_ms=20), top=3, front=6)
    spec = pareto_chart(result, model=model.name, cluster=cluster)
    plans = [one for one in walk(spec) if "label" in one and "user" in one]
    by_rank = {one["label"]: one for one in plans}
    assert {"1", "2", "3"} <= set(by_rank)
    for rank, found in enumerate(result.plans[: result.best], 1):
        speed = found.estimate.speed
        assert speed is not None
        assert speed.tokens_per_s_per_gpu is not None
        one = by_rank[str(rank)]
        assert one["gpu"] == speed.tokens_per_s_per_gpu.value
        assert one["gpu_low"] < one["gpu"] < one["gpu_high"]
        assert one["user_low"] < one["user"] < one["user_high"]
    assert {"user": 50.0, "text": "mean TPOT ≤ 20 ms →"} in list(walk(spec))


def test_search_that_finds_nothing_still_draws() -> None:
    model, cluster = load_model("llama-3.1-70b"), Cluster.of(find("rtx-4090"), 1)
    result = search_serving(model, cluster, Serving(isl=1024, osl=256), precision=["bf16"])
    assert not result.plans
    spec = pareto_chart(result, model=model.name, cluster=cluster)
    assert "no plan fits" in spec["title"]["subtitle"]
    assert [one["text"] for one in rows(spec["vconcat"][0])] == ["no plan fits"]
    json.dumps(spec, allow_nan=False)


def test_comparison_has_bars_with_intervals_and_names_what_does_not_fit() -> None:
    clusters = [Cluster.of(find("h100-sxm"), 2), Cluster.of(find("rtx-4090"), 1)]
    found = compare(load_model("llama-3.1-70b"), clusters, Serving(isl=1024, osl=256, tpot_ms=50))
    spec = comparison_chart(found, model="llama-3.1-70b")
    bars = [one for one in walk(spec) if "value_low" in one and "kind" in one]
    assert bars
    assert all(one["value_low"] <= one["value"] <= one["value_high"] for one in bars)
    assert any("RTX 4090: does not fit" in line for line in spec["title"]["subtitle"])
    assert len({one["name"] for one in bars}) * 4 == len(bars)


def test_comparison_chart_and_table_show_the_same_plans_each_under_its_own_name() -> None:
    clusters = [Cluster.of(find("h100-sxm"), 2), Cluster.of(find("b300-sxm"), 1)]
    found = compare(load_model("gpt-oss-120b"), clusters, Serving(isl=4096, osl=1024, tpot_ms=50))
    bars = rows(panel(comparison_chart(found, model="gpt-oss-120b"), "Throughput"))
    table = render_comparison(found, model="gpt-oss-120b")
    assert {one["kind"] for one in bars} == {"as published", "best precision"}
    assert len({one["name"] for one in bars}) == len(bars)
    for one in bars:
        assert f" {one['value']:,.0f} " in table
        assert f"{one['value_low']:,.0f} – {one['value_high']:,.0f}" in table


@pytest.mark.parametrize("reach", [0.03, 0.61, 6.0, 49.0, 66.4, 9171.0, 26_000.0])
def test_ticks_of_small_panels_are_few_and_even(reach: float) -> None:
    found = ticks(reach)
    assert found[0] == 0
    assert 3 <= len(found) <= 5
    assert found[-1] <= reach
    assert found[-1] + found[1] > reach


def test_ranks_of_plans_that_lie_on_one_another_stand_in_one_line() -> None:
    load = Serving(isl=2048, osl=512, rate=2, tpot_ms=40)
    result = search_serving(load_model("llama-3.1-8b"), Cluster.of(find("h100-sxm"), 1), load, top=3)
    twice = replace(result, plans=(*result.plans[:3], *result.plans[:3]), best=6, front=(), pareto=())
    spec = pareto_chart(twice, model="llama-3.1-8b", cluster=Cluster.of(find("h100-sxm"), 1))
    texts = [
        layer["data"]["values"][0]["label"]
        for layer in spec["vconcat"][0]["layer"]
        if isinstance(layer.get("mark"), dict) and layer["encoding"].get("text", {}).get("field") == "label"
    ]
    ranks = sorted(rank for text in texts for rank in text.split(", "))
    assert ranks == ["1", "2", "3", "4", "5", "6"]
    assert all(len(text.split(", ")) >= 2 for text in texts)


def test_legend_of_served_memory_knows_no_optimizer() -> None:
    one = panel(estimate_chart(answer(), find("h200-sxm")), "Memory of one GPU")
    assert "weights" in {row["colour"] for row in rows(one)}
    assert "weights and optimizer" not in {row["colour"] for row in rows(one)}


def test_training_chart_goes_from_naive_to_best_and_adds_up() -> None:
    model, cluster = load_model("llama-3.1-8b"), Cluster.of(find("h100-sxm"), 8)
    workload = TrainingWorkload(seq=4096, global_batch=64)
    search = search_training(model, cluster, workload, settled=TrainingConstraints(), top=1)
    best = estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=search.plans[0].plan))
    steps = waterfall(model, cluster, workload, search)
    spec = training_chart(best, cluster.accelerator, steps)
    way = rows(panel(spec, "From a naive plan"))
    assert [one["seconds"] for one in way] == [step.step_s for step in steps]
    whole = rows(panel(spec, "Where the time of a step goes"))
    assert best.speed is not None
    assert best.speed.step_s is not None
    assert whole[-1]["end"] == pytest.approx(best.speed.step_s.interval.value)
    assert len({one["name"] for one in whole}) == len(whole)


def test_names_from_files_stay_on_one_line_and_are_cut() -> None:
    hostile = estimate(Question(
        model=load_model("llama-3.1-8b"), cluster=Cluster.of(find("h100-sxm"), 1), workload=LOAD,
        plan=Plan(engine=EngineRef(), pools=(Pool(layout=Layout()),)),
    ))  # fmt: skip
    model = replace(hostile.question.model, name="a\nb\x00\u2028" + "x" * 10_000)
    text = estimate_chart(replace(hostile, question=replace(hostile.question, model=model)), find("h100-sxm"))["title"][
        "text"
    ]
    assert len(text) <= 150
    assert text.isprintable()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chart.pdf", "give *.png, *.svg or *.html"),
        ("chart", "give *.png, *.svg or *.html"),
        ("missing/chart.svg", "there is no folder"),
        ("x" * 300 + ".svg", "cannot be written"),
    ],
)
def test_file_that_cannot_be_drawn_to_is_refused_before_the_work(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    assert main(["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--chart", str(path)]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert not list(tmp_path.iterdir())


def test_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "chart.svg").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        chart_file(str(tmp_path / "chart.svg"))


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "llama-3.1-8b", "--gpu", "h100-sxm"],
        ["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--train", "4096", "--global-batch", "8"],
        ["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--serve", "128/128"],
        ["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--train", "4096", "--global-batch", "8"],
        ["compare", "llama-3.1-8b", "--gpu", "h100-sxm"],
    ],
    ids=lambda command: " ".join(command[:1] + command[4:5]),
)
def test_missing_extra_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main([*command, "--chart", str(tmp_path / "chart.svg")]) == 2
    shown = capsys.readouterr()
    assert shown.err == "trilemma: --chart needs the extra for charts; pip install 'trilemma[charts]'\n"
    assert not shown.out


def test_front_without_targets_is_never_beaten_by_the_one_with_them() -> None:
    model, cluster = load_model("llama-3.1-8b"), Cluster.of(find("h100-sxm"), 4)
    load = Serving(isl=1024, osl=256, tpot_ms=8, ttft_ms=200)
    result = search_serving(model, cluster, load, top=3, front=6)
    free = search_serving(model, cluster, replace(load, tpot_ms=1e9, ttft_ms=None), top=3, front=6)
    spec = pareto_chart(result, model=model.name, cluster=cluster, unlimited=free)
    dashed, solid = (layer["data"]["values"] for layer in spec["vconcat"][0]["layer"][:2])
    for one in solid:
        assert any(other["user"] >= one["user"] and other["gpu"] >= one["gpu"] for other in dashed)
    assert max(one["gpu"] for one in dashed) > max(one["gpu"] for one in solid)
