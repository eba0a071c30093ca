"""Cards for a need: the least that do it, ranked exactly, within prices and limits of one's own."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import trilemma as tl
from trilemma.capacity.bounds import least_for_serving, least_for_training
from trilemma.capacity.offers import offers
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.report.schemas import schema_of
from trilemma.search.precisions import precisions
from trilemma.workloads import Serving, TrainingWorkload

_LOAD: dict[str, Any] = {"isl": 2048, "osl": 256, "rate": 4.0, "ttft": 2000, "tpot": 50}
_FEW = "h100-sxm,h200-sxm,l40s,rtx-4090,a100-sxm4-80gb"


def test_70b_in_full_takes_16_h100() -> None:
    """Weights, gradients, FP32 master and Adam of 70.6e9 parameters are 16 to 18 bytes each: 1.1 TB and more, of 80 GB cards at
    least 14, hence 16 (ZeRO: Rajbhandari et al. 2020, section 3.1)."""
    found = tl.recommend("llama-3.1-70b", train=4096, global_batch=64, include="h100-sxm")
    assert (found.choices[0].card.id, found.choices[0].gpus) == ("nvidia-h100-sxm5-80gb", 16)
    assert found.choices[0].estimate.question.plan.offload.optimizer == 0


def test_7b_qlora_takes_one_card_of_24_gb() -> None:
    """Dettmers et al. 2023, table 6 and section 1: a 7B model is finetuned in about 5 GB, 33B in 24 GB."""
    found = tl.recommend(
        "llama-2-7b", train=1024, global_batch=16, method="qlora", include="rtx-4090,rtx-3090,h100-sxm", top=3
    )
    assert {one.card.id: one.gpus for one in found.choices if "rtx" in one.card.id} == {
        "nvidia-rtx-3090": 1, "nvidia-rtx-4090": 1,
    }  # fmt: skip
    assert "rtx" in found.choices[0].card.id


def test_the_ranking_is_exact() -> None:
    every = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, top=9)
    best = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, top=2)
    costs = [one.cost for one in every.choices]
    assert costs == sorted(costs)
    assert len(costs) >= 4
    assert [(one.card.id, one.gpus) for one in best.choices] == [(one.card.id, one.gpus) for one in every.choices[:2]]


def test_a_choice_is_what_plan_finds() -> None:
    first = tl.recommend("llama-3.1-8b", **_LOAD, include="l40s").choices[0]
    plan = tl.plan("llama-3.1-8b", "l40s", **_LOAD, pools="aggregated").best
    assert plan is not None
    assert first.gpus == plan.question.cluster.gpus
    assert first.estimate.speed == plan.speed


def test_no_choice_has_fewer_gpus_than_its_bound() -> None:
    model = tl.load_model("llama-3.1-8b")
    load = Serving(isl=2048, osl=256, rate=4.0, ttft_ms=2000, tpot_ms=50)
    for one in tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, top=9).choices:
        assert least_for_serving(precisions(model, one.card, None), one.card, load) <= one.gpus
    job = TrainingWorkload(seq=2048, global_batch=64)
    for trained in tl.recommend("llama-3.1-8b", train=2048, global_batch=64, include=_FEW, top=9).choices:
        assert least_for_training(model, trained.card, job, None) <= trained.gpus


def test_the_bound_of_training_is_weights_and_gradients() -> None:
    """8.03e9 parameters at four bytes are 32.1 GB: two cards of 24 GB at least, one of 80."""
    model, job = tl.load_model("llama-3.1-8b"), TrainingWorkload(seq=2048, global_batch=64, tokens=1e12)
    assert least_for_training(model, find("rtx-4090"), job, None) == 2
    assert least_for_training(model, find("h100-sxm"), job, None) == 1
    # 6 x (8.03e9 - 0.525e9 of the embedding) x 1e12 / 1.98e15 a second (FP8) are 263 days of one card
    assert 22 <= least_for_training(model, find("h100-sxm"), job, 10) <= 28


def test_ones_own_price_decides() -> None:
    cheap = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, price={"h200-sxm": 0.01})
    dear = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, price="h200-sxm=900", top=9)
    assert cheap.choices[0].card.id == "nvidia-h200-sxm"
    assert cheap.choices[0].usd_per_hour is not None
    assert cheap.choices[0].usd_per_hour.high == pytest.approx(0.01 * cheap.choices[0].gpus)
    assert dear.choices[-1].card.id == "nvidia-h200-sxm"


def test_a_price_file_is_read(tmp_path: Any) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("name,usd_per_hour\nl40s,0.02\n")
    found = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, price=str(file))
    assert found.choices[0].card.id == "nvidia-l40s"


def test_limits_leave_cards_out() -> None:
    free = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, top=9)
    hour = sorted(one.usd_per_hour.value for one in free.choices if one.usd_per_hour is not None)
    limited = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, top=9, budget_per_hour=hour[1])
    assert len(limited.choices) == 2
    assert any("dearer than" in why for why in limited.left_out)
    narrow = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, top=9, max_gpus=1)
    assert {one.gpus for one in narrow.choices} == {1}
    weak = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, top=9, max_kw=0.5)
    assert all(one.watts is not None and one.watts.high <= 500 for one in weak.choices)
    assert any("may draw more than 0.5 kW" in why for why in weak.left_out)


def test_what_is_spared_first_orders() -> None:
    by_power = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, by="power", top=9).choices
    drawn = [one.watts.value for one in by_power if one.watts is not None]
    assert drawn == sorted(drawn)
    assert len(drawn) == len(by_power)
    by_count = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, by="gpus", top=9).choices
    assert [one.gpus for one in by_count] == sorted(one.gpus for one in by_count)


def test_power_is_what_cards_draw_and_costs_what_a_kilowatt_hour_does() -> None:
    """A choice draws what `fit` says that its plan draws, at most the limit of its boards, and pays for that alone."""
    free = tl.recommend("llama-3.1-8b", **_LOAD, include="h100-sxm").choices[0]
    paid = tl.recommend("llama-3.1-8b", **_LOAD, include="h100-sxm", usd_per_kwh=0.5).choices[0]
    assert free.watts is not None
    assert free.watts == free.estimate.watts
    assert free.limit_watts == pytest.approx(700 * free.gpus)
    assert free.watts.value < free.limit_watts
    assert free.usd_per_hour is not None
    assert paid.usd_per_hour is not None
    assert paid.usd_per_hour.value - free.usd_per_hour.value == pytest.approx(0.5 * free.watts.value / 1e3)
    assert paid.cost == pytest.approx(paid.usd_per_hour.value)
    kept = offers(spared="power")
    assert all(kept.least_cost(card, 1) <= card.tdp_w.value for card in kept.cards if card.tdp_w is not None)


def test_electricity_can_change_the_first() -> None:
    """Cards that are given away are ranked by what they draw."""
    given = dict.fromkeys(("h100-sxm", "l40s"), 1e-06)
    dear = tl.recommend("llama-3.1-8b", **_LOAD, include="h100-sxm,l40s", price=given, usd_per_kwh=10, top=2).choices
    assert [one.watts.value for one in dear if one.watts] == sorted(one.watts.value for one in dear if one.watts)


def test_the_document_is_what_its_schema_says() -> None:
    found = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW, usd_per_kwh=0.1).to_dict()
    jsonschema.validate(found, schema_of("recommendation"))
    trained = tl.recommend("llama-3.1-8b", train=2048, global_batch=64, tokens="2B", include=_FEW).to_dict()
    jsonschema.validate(trained, schema_of("recommendation"))
    assert found["choices"][0]["watts"] <= found["choices"][0]["board_watts"]


@pytest.mark.parametrize(
    "job",
    [
        {"train": 1024, "global_batch": 16, "method": "qlora", "tokens": "1B", "include": "rtx-4090"},
        {"train": 4096, "global_batch": 64, "recompute": "full", "precision": "bf16", "include": "h100-sxm"},
    ],
)
def test_the_command_of_a_training_plans_that_very_choice(
    job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pasted, it finds the same plan at the same step and writes its files."""
    found = tl.recommend("llama-2-7b", **job)
    first = found.choices[0]
    planned, exported = found.command(first).split(" && ")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(planned.removesuffix(" > plan.json"))[1:]) == 0
    document = capsys.readouterr().out
    Path("plan.json").write_text(document)
    told = json.loads(document)["plans"][0]
    assert told["inputs"]["plan"]["summary"] == first.estimate.summary
    assert first.estimate.speed is not None
    assert first.estimate.speed.step_s is not None
    assert told["speed"]["step_s"]["value"] == pytest.approx(first.estimate.speed.step_s.interval.value, rel=1e-5)
    assert main(shlex.split(exported)[1:]) == 0
    assert (tmp_path / "run" / "train.sh").exists()
    assert found.command(first) in found.show(width=200)


@pytest.mark.parametrize(
    "rows", ["l40s,-3\n", "l40s,0.5\nl40s,0.9\n", "name,usd_per_hour\n", "", "l40s,nan\n", "l40s\n", "l40s,9e9\n"]
)
def test_a_price_file_that_cannot_be_is_refused(rows: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(rows)
    with pytest.raises(InputError, match="price"):
        tl.recommend("llama-3.1-8b", **_LOAD, include="h100-sxm", price=str(file))


def test_mtbf_has_a_unit() -> None:
    job: dict[str, Any] = {"train": 4096, "global_batch": 64, "tokens": "1T", "include": "h100-sxm", "top": 1}
    days = [
        tl.recommend("llama-3.1-8b", **job, mtbf=given).choices[0].days for given in (240, "240h", "10d", "14400min")
    ]
    assert len(set(days)) == 1


def test_a_maker_or_architecture_names_its_cards() -> None:
    kept = offers(include=["amd"]).cards
    assert kept
    assert {card.vendor for card in kept} == {"AMD"}
    assert not {card.id for card in offers(exclude=["nvidia"]).cards} & {
        card.id for card in offers(include=["nvidia"]).cards
    }
    assert sum(offers().left_out.values()) + len(offers().cards) == len(offers(spared="gpus").cards)


def test_a_deadline_takes_more_gpus() -> None:
    job: dict[str, Any] = {"train": 4096, "global_batch": 256, "tokens": "20B", "include": "h100-sxm"}
    slow, fast = tl.recommend("llama-3.1-8b", **job), tl.recommend("llama-3.1-8b", **job, days=3)
    assert slow.choices[0].gpus < fast.choices[0].gpus
    assert fast.choices[0].days is not None
    assert fast.choices[0].days.value <= 3
    run, hour = fast.choices[0].run_usd, fast.choices[0].usd_per_hour
    assert run is not None
    assert hour is not None
    assert run.value == pytest.approx(fast.choices[0].days.value * 24 * hour.value, rel=1e-6)


def test_nothing_does_it(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["recommend", "llama-3.1-70b", "--serve", "2048/256", "--rate", "50", "--include", "l4", "--max-gpus", "2"]
    )
    told = capsys.readouterr().out
    assert code == 1
    assert "none of 1 card does it" in told
    assert "more than 2 GPUs" in told


def test_the_document_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recommend", "llama-3.1-8b", "--serve", "1024/128", "--rate", "1", "--include", "l40s,rtx-4090", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/recommendation@1"
    first = document["choices"][0]
    assert {"gpu", "count", "layout", "usd_per_hour", "why", "estimate"} <= set(first)
    assert first["estimate"]["fits"] is True
    assert first["usd_per_hour"] <= document["choices"][1]["usd_per_hour"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_fits_the_window(width: int) -> None:
    shown = tl.recommend("llama-3.1-8b", **_LOAD, include=_FEW).show(width=width)
    table = shown.partition("run the first")[0]
    assert all(len(line) <= width for line in table.splitlines())
    assert "H100 SXM5" in shown


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"price": "h100-sxm"}, "price"),
        ({"price": "h100-sxm=cheap"}, "price"),
        ({"price": "h100-sxm=-1"}, "price"),
        ({"price": "no-such-card=1"}, "no-such-card"),
        ({"include": " , "}, "include"),
        ({"include": "no-such-card"}, "no-such-card"),
        ({"top": 0}, "top"),
        ({"max_gpus": 10_000}, "max_gpus"),
        ({"days": 3}, "days"),
        ({"budget": 3}, "budget"),
        ({"budget_per_hour": -3}, "limit"),
        ({"by": "beauty"}, "by"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError) as caught:
        tl.recommend("llama-3.1-8b", **_LOAD, **options)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_how_far_the_search_is_can_be_told() -> None:
    seen: list[tuple[int, int, str]] = []
    found = tl.recommend(
        "llama-3.1-8b", isl=512, osl=64, include=["l4", "l40s"], progress=lambda *step: seen.append(step)
    )
    assert [step[0] for step in seen] == [*range(found.searched), found.searched]
    assert all(done < of and name for done, of, name in seen[:-1])
    assert seen[-1] == (found.searched, found.searched, "")
