"""Serving terms as shipped: what they may hold, what they change, and how they reach deployments nobody measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from timing_cases import BF16, FP8, card, cluster, llama_70b, mixture

from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import all_accelerators, find
from trilemma.measured.serving.speed.document import to_text
from trilemma.plans import Layout, Plan, Pool
from trilemma.question import Question
from trilemma.timing import Machine, model_work, serving_speed
from trilemma.timing.coefficients import SCALED_BY, scaled
from trilemma.timing.intervals import speed_spread
from trilemma.timing.serving_terms import (
    LEVELS,
    ServingTerms,
    Spread,
    from_document,
    keys_of,
    memory_class,
    precision_of,
    priors,
    shipped,
)
from trilemma.workloads import Serving

ENGINES = {"vllm", "sglang", "tensorrt-llm", "llama.cpp"}


def test_every_term_scales_something_and_has_a_prior():
    assert set(priors().terms) == set(SCALED_BY)
    halved = scaled(Machine.of(cluster()).coefficients, dict.fromkeys(SCALED_BY, 0.5))
    plain = Machine.of(cluster()).coefficients
    for names in SCALED_BY.values():
        for name in names:
            one, half = getattr(plain, name), getattr(halved, name)
            assert half == {key: share / 2 for key, share in one.items()} if isinstance(one, dict) else half == one / 2


def test_no_share_of_a_bandwidth_exceeds_it_and_routing_is_at_most_even():
    raised = scaled(Machine.of(cluster()).coefficients, dict.fromkeys(SCALED_BY, 50.0))
    for name in ("cache_stream", "link_share", "pcie_share", "network_share", "routing_evenness"):
        assert getattr(raised, name) == 1.0
    assert raised.step_s == pytest.approx(50 * Machine.of(cluster()).coefficients.step_s)


def test_attention_links_and_hosts_do_not_know_how_weights_are_stored():
    of_weights = {
        "matmul", "stream", "experts_matmul", "experts_stream", "prefill_matmul", "prefill_experts", "kernel", "experts_kernel",
    }  # fmt: skip
    for term, widths in priors().widths.items():
        by_level = dict(zip(LEVELS, widths, strict=True))
        assert (by_level["kind"] > 0, by_level["deployment"] > 0) == (term in of_weights,) * 2
        assert by_level["site"] > 0
    one, other = (shipped().factors("vllm", find("h100-sxm"), precision) for precision in ("8-bit fp8", "4-bit bf16"))
    for term in set(SCALED_BY) - of_weights:
        assert one[term] == pytest.approx(other[term], rel=1e-3)


def test_keys_are_engines_cards_and_precisions_never_models():
    cards = {one.id for one in all_accelerators()}
    kinds = {memory_class(one) for one in all_accelerators()}
    assert len(shipped().offsets) == len(LEVELS)
    assert set(shipped().offsets[0]) == {"all"}
    assert set(shipped().offsets[1]) <= ENGINES
    assert set(shipped().offsets[2]) <= cards
    for key in shipped().offsets[3]:
        engine, accelerator = key.split(" ")
        assert (engine in ENGINES, accelerator in cards) == (True,) * 2
    for key in shipped().offsets[4]:
        engine, kind, bits, computed = key.split(" ")
        assert (engine in ENGINES, kind in kinds, bits.endswith("-bit"), computed.isalnum()) == (True,) * 4
    for key in shipped().offsets[5]:
        engine, accelerator, bits, _ = key.split(" ")
        assert (engine in ENGINES, accelerator in cards, bits.endswith("-bit")) == (True,) * 3


def test_multipliers_stay_within_what_hardware_allows():
    for engine in ENGINES:
        for accelerator in all_accelerators():
            factors = shipped().factors(engine, accelerator, "8-bit fp8")
            assert all(1 / 60 < factor < 60 for factor in factors.values())


def test_a_deployment_that_nobody_measured_has_what_it_shares_and_what_its_nearest_relative_has():
    own = {"vllm nvidia-h100-sxm5-80gb 8-bit fp8": {"step": 1.0}}
    terms = ServingTerms(offsets=({"all": {"step": 0.1}}, {"vllm": {"step": 0.2}}, {}, {}, {}, own))
    assert terms.factors("vllm", find("h100-sxm5-80gb"), "8-bit fp8")["step"] == pytest.approx(math.exp(1.3))
    assert terms.factors("vllm", find("h200-sxm"), "8-bit fp8")["step"] == pytest.approx(math.exp(1.3))
    assert not terms.measured("vllm", find("h200-sxm"), "8-bit fp8")
    for engine, card_name, precision in (
        ("vllm", "b300-sxm", "8-bit fp8"),  # another generation
        ("vllm", "h200-sxm", "16-bit bf16"),
        ("vllm", "mi300x", "8-bit fp8"),
    ):
        assert terms.factors(engine, find(card_name), precision)["step"] == pytest.approx(math.exp(0.3))
    assert terms.factors("other", find("h200-sxm"), "8-bit fp8")["step"] == pytest.approx(math.exp(0.1))


def test_another_precision_of_a_card_keeps_what_its_engine_does_there():
    sites = {f"vllm {find(name).id}": {"sequence": offset} for name, offset in (("h100-sxm", 0.1), ("h200-sxm", 0.2))}
    runs = {f"vllm {find('h100-sxm').id} 8-bit fp8": {"matmul": 0.5}, f"vllm {find('h200-sxm').id} 16-bit bf16": {}}
    terms = ServingTerms(offsets=({}, {}, {}, sites, {}, runs))
    factors = terms.factors("vllm", find("h200-sxm"), "8-bit fp8")
    assert (factors["sequence"], factors["matmul"]) == (pytest.approx(math.exp(0.2)), pytest.approx(math.exp(0.5)))


@pytest.mark.parametrize("precision", ["bf16", "fp8", "nvfp4"])
def test_b300_is_not_slower_than_b200(precision):
    from trilemma.models.quantized import requantize
    from trilemma.models.resolve import load_model

    model = load_model("llama-3.1-70b")
    model = model if precision == "bf16" else requantize(model, precision)
    speeds = []
    for name in ("b200-sxm-180gb", "b300-sxm"):
        accelerator = find(name)
        work = model_work(model, accelerator)
        machine = Machine.serving(cluster(accelerator, gpus=8), work=work, engine="vllm")
        load = {"isl": 4096, "osl": 1024, "kv_format": BF16}
        speeds.append(serving_speed(work, machine, Layout(tp=8), concurrency=64, **load))
    assert speeds[1].tpot_s <= speeds[0].tpot_s
    assert speeds[1].ttft_s <= speeds[0].ttft_s


def test_levels_of_one_deployment():
    assert keys_of("vllm", find("h200-sxm"), "8-bit fp8") == (
        "all", "vllm", "nvidia-h200-sxm", "vllm nvidia-h200-sxm", "vllm hbm 8-bit fp8",
        "vllm nvidia-h200-sxm 8-bit fp8",
    )  # fmt: skip
    assert memory_class(find("rtx-4090")) == "gddr"
    assert memory_class(find("m2-ultra")) == "apple"


def test_precision_is_that_of_most_weights():
    assert precision_of(model_work(llama_70b(), card())) == "16-bit bf16"
    assert precision_of(model_work(llama_70b(FP8), card())) == "8-bit fp8"
    assert precision_of(model_work(mixture(), card())) == "16-bit bf16"


def test_a_document_says_the_same_again():
    import json

    terms = replace(shipped(), spreads=shipped().spreads[:3])
    again = from_document(json.loads(to_text(terms, priors(), as_of="2026-11-29", made_by="a test")))
    for one, other in zip(again.offsets, terms.offsets, strict=True):
        assert set(one) == set(other)
        for key in one:
            assert one[key] == pytest.approx(other[key], abs=1e-4)
    assert again.spreads == terms.spreads


def test_the_narrowest_class_with_rows_answers():
    def spread(family: str, engine: str, precision: str) -> Spread:
        return Spread(
            figure="tpot", family=family, measured=True, engine=engine, precision=precision, low=0.9, high=1.1, rows=1
        )

    rows = (
        spread("dense", "vllm", "8-bit fp8"),
        spread("dense", "vllm", ""),
        spread("dense", "", ""),
        spread("", "", ""),
    )
    terms = ServingTerms(offsets=({},) * 5, spreads=rows)
    asked = {"engine": "vllm", "measured": True}
    assert terms.spread("tpot", family="dense", precision="8-bit fp8", **asked) is rows[0]
    assert terms.spread("tpot", family="dense", precision="4-bit bf16", **asked) is rows[1]
    assert terms.spread("tpot", family="dense", engine="sglang", precision="", measured=True) is rows[2]
    assert terms.spread("tpot", family="mixture", precision="8-bit fp8", **asked) is rows[3]
    assert terms.spread("ttft", family="dense", precision="8-bit fp8", **asked) is None


def test_shipped_error_bars_hold_the_prediction_and_widen_where_nothing_was_measured():
    for one in shipped().spreads:
        assert one.low < 1 < one.high
    for figure in ("tpot", "ttft"):
        for family in ("dense", "mixture"):
            known, other = (
                shipped().spread(figure, family=family, engine="", precision="", measured=measured)
                for measured in (True, False)
            )
            assert known is not None
            assert other is not None
            assert other.high / other.low > known.high / known.low


def test_a_card_that_nobody_measured_keeps_the_widest_bounds():
    odd = card(capability=99.0)
    work = model_work(llama_70b(), odd)
    machine = Machine.serving(cluster(odd), work=work, engine="vllm")
    assert speed_spread(machine, llama_70b())["tpot"] == speed_spread(Machine.of(cluster(odd)), llama_70b())["tpot"]


def test_terms_in_use_reach_every_estimate():
    work = model_work(llama_70b(FP8), find("h200-sxm"))
    load = {"concurrency": 8, "isl": 512, "osl": 128, "kv_format": BF16}
    cards = cluster(find("h200-sxm"), gpus=8)

    def tpot(terms: ServingTerms | None) -> float:
        machine = Machine.serving(cards, work=work, engine="vllm", terms=terms)
        return float(serving_speed(work, machine, Layout(tp=8), **load).tpot_s)

    before = tpot(None)
    slower = ({"all": {**shipped().offsets[0]["all"], "kernel": 2.0}}, *shipped().offsets[1:])
    terms = replace(shipped(), offsets=slower)
    assert Machine.serving(cards, work=work, engine="vllm", terms=terms).terms is terms
    assert tpot(terms) > before == tpot(None)
    plan = Plan(pools=(Pool(layout=Layout(tp=8)),))
    question = Question(
        model=llama_70b(FP8), cluster=cards, workload=Serving(isl=512, osl=128, concurrency=8), plan=plan
    )

    def of_estimate(question: Question[Serving, Plan]) -> float:
        speed = estimate(question).speed
        assert speed is not None
        assert speed.tpot_s is not None
        return speed.tpot_s.interval.value

    assert of_estimate(replace(question, terms=terms)) > of_estimate(question)
