"""Serving terms as shipped: what they may hold, what they change, and how they reach deployments nobody measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from timing_cases import BF16, FP8, card, cluster, llama_70b, mixture

from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import all_accelerators, find
from trilemma.measured.serving.speed.document import to_text
from trilemma.models.architecture import Model
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Plan, Pool
from trilemma.question import Question
from trilemma.timing import Machine, model_work, serving_speed
from trilemma.timing.coefficients import fitted_terms, scaled
from trilemma.timing.distance import DISTANCES, Seen, shape_of
from trilemma.timing.intervals import OF_DATASHEETS, speed_spread
from trilemma.timing.serving_terms import (
    LEVELS,
    ServingTerms,
    Spread,
    chips_of,
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
    assert set(priors().terms) == set(fitted_terms())
    halved = scaled(Machine.of(cluster()).coefficients, dict.fromkeys(fitted_terms(), 0.5))
    plain = Machine.of(cluster()).coefficients
    for term in fitted_terms().values():
        for name in term.scales:
            one, half = getattr(plain, name), getattr(halved, name)
            assert half == {key: share / 2 for key, share in one.items()} if isinstance(one, dict) else half == one / 2


def test_no_share_of_a_bandwidth_exceeds_it_and_routing_is_at_most_even():
    raised = scaled(Machine.of(cluster()).coefficients, dict.fromkeys(fitted_terms(), 50.0))
    for name in ("cache_stream", "link_share", "pcie_share", "routing_evenness"):
        assert getattr(raised, name) == 1.0
    assert raised.step_s == pytest.approx(50 * Machine.of(cluster()).coefficients.step_s)


OF_WEIGHTS = {
    "matmul", "stream", "experts_matmul", "experts_stream", "prefill_matmul", "prefill_experts", "experts_kernel",
}  # fmt: skip


def test_attention_links_and_hosts_do_not_know_how_weights_are_stored():
    for term, widths in priors().widths.items():
        by_level = dict(zip(LEVELS, widths, strict=True))
        for level in ("format", "memory", "kind", "deployment"):
            assert (by_level[level] > 0) == (term in OF_WEIGHTS), (term, level)
        # what is compiled once is a site's own
        assert by_level["shared"] > 0 or (term == "compile" and by_level["site"] > 0)
    one, other = (shipped().factors("vllm", find("h100-sxm"), precision) for precision in ("8-bit fp8", "4-bit bf16"))
    for term in set(fitted_terms()) - OF_WEIGHTS:
        assert one[term] == pytest.approx(other[term], rel=1e-3)


def test_routing_hangs_on_no_card():
    """Which experts a text wakes is the model's doing; kernels and cards have no part in it."""
    for card_name in ("h100-sxm", "b200-sxm-180gb", "mi355x"):
        factors = shipped().factors("vllm", find(card_name), "8-bit fp8")
        assert (
            factors["routing_evenness"] == shipped().factors("vllm", find("rtx-4090"), "4-bit bf16")["routing_evenness"]
        )


def test_keys_are_engines_cards_and_precisions_never_models():
    cards = {one.id for one in all_accelerators()}
    chips = {chips_of(one) for one in all_accelerators()}
    of = dict(zip(LEVELS, shipped().offsets, strict=True))
    assert set(of["shared"]) == {"all"}
    assert set(of["engine"]) <= ENGINES
    assert set(of["chips"]) <= chips
    assert set(of["card"]) <= cards
    for level, known in (("generation", chips), ("site", cards)):
        for key in of[level]:
            engine, place = key.split(" ", 1)
            assert (engine in ENGINES, place in known) == (True,) * 2
    kinds = {memory_class(one) for one in all_accelerators()}
    for level, known in (("format", chips), ("memory", kinds), ("kind", chips), ("deployment", cards)):
        for key in set(of[level]) - {"hbm"}:
            place, bits, computed = key.rsplit(" ", 2)
            place = place if level == "format" else place.split(" ", 1)[1]
            assert (place in known, bits.endswith("-bit"), computed.isalnum()) == (True,) * 3, key


def test_multipliers_stay_within_what_hardware_allows():
    for engine in ENGINES:
        for accelerator in all_accelerators():
            factors = shipped().factors(engine, accelerator, "8-bit fp8")
            assert all(1 / 60 < factor < 60 for factor in factors.values())


def offsets(**levels: dict[str, dict[str, float]]) -> tuple[dict[str, dict[str, float]], ...]:
    return tuple(levels.get(level, {}) for level in LEVELS)


def test_a_deployment_that_nobody_measured_has_the_levels_that_it_shares():
    own = {"vllm nvidia-h100-sxm5-80gb 8-bit fp8": {"matmul": 1.0}}
    terms = ServingTerms(
        offsets=offsets(
            shared={"all": {"matmul": 0.1}}, engine={"vllm": {"matmul": 0.2}}, chips={"Hopper hbm": {"matmul": 0.3}},
            format={"Hopper hbm 8-bit fp8": {"matmul": 0.4}}, deployment=own,
        )
    )  # fmt: skip
    expected = {
        ("vllm", "h100-sxm5-80gb", "8-bit fp8"): 2.0,
        ("vllm", "h200-sxm", "8-bit fp8"): 1.0,  # one die
        ("sglang", "h200-sxm", "8-bit fp8"): 0.8,  # kernels of the same libraries
        ("vllm", "h200-sxm", "16-bit bf16"): 0.6,
        ("vllm", "b300-sxm", "8-bit fp8"): 0.3,
        ("other", "mi300x", "8-bit fp8"): 0.1,
    }
    for (engine, name, precision), total in expected.items():
        assert terms.factors(engine, find(name), precision)["matmul"] == pytest.approx(math.exp(total)), (engine, name)
    assert not terms.measured("vllm", find("h200-sxm"), "8-bit fp8")


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
        "all", "vllm", "Hopper hbm", "nvidia-h200-sxm", "vllm Hopper hbm", "vllm nvidia-h200-sxm", "Hopper hbm 8-bit fp8",
        "hbm", "vllm Hopper hbm 8-bit fp8", "vllm nvidia-h200-sxm 8-bit fp8",
    )  # fmt: skip
    assert chips_of(find("b300-sxm")) == chips_of(find("b200-sxm-180gb")) == "Blackwell hbm"
    assert chips_of(find("rtx-5090")) == "Blackwell gddr"
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


def spread(family: str, distance: str, half: float = 0.1) -> Spread:
    return Spread(figure="tpot", family=family, distance=distance, half=half, blocks=9, rows=99)


def test_a_class_without_rows_takes_the_next_farther_away():
    rows = (spread("dense", "own deployment"), spread("", "other precision"), spread("", "engine never seen"))
    terms = ServingTerms(offsets=offsets(), spreads=rows)
    assert terms.spread("tpot", family="dense", distance="own deployment") is rows[0]
    assert terms.spread("tpot", family="mixture", distance="own deployment") is rows[1]
    assert terms.spread("tpot", family="dense", distance="other model") is rows[1]
    assert terms.spread("tpot", family="dense", distance="card never seen") is rows[2]
    assert terms.spread("ttft", family="dense", distance="own deployment") is None


def test_bounds_lie_as_far_above_as_below():
    assert spread("", "other model", 0.3).low * spread("", "other model", 0.3).high == pytest.approx(1.0)
    assert spread("", "other model", math.log(1.5)).high == pytest.approx(1.5)


def test_shipped_error_bars_widen_with_distance():
    assert shipped().spreads
    for one in shipped().spreads:
        assert one.low < 1 < one.high
        assert one.distance in DISTANCES
    for figure in ("tpot", "ttft"):
        for family in ("dense", "mixture"):
            near, far = (
                shipped().spread(figure, family=family, distance=distance)
                for distance in ("own deployment", "engine never seen")
            )
            assert near is not None
            assert far is not None
            assert near.half < far.half


def test_a_question_is_told_how_far_it_lies_from_the_runs():
    runs = [
        ("vllm", "nvidia-h100-sxm5-80gb", "8-bit fp8", "80 x 8192"),
        ("sglang", "nvidia-h200-sxm", "8-bit fp8", "1 x 1"),
    ]
    seen = Seen.of(runs)
    asked = {"engine": "vllm", "card": "nvidia-h100-sxm5-80gb", "precision": "8-bit fp8", "shape": "80 x 8192"}
    assert seen.distance(**asked) == "own deployment"
    assert seen.distance(**asked | {"shape": "32 x 4096"}) == "other model"
    assert seen.distance(**asked | {"precision": "16-bit bf16"}) == "other precision"
    assert seen.distance(**asked | {"card": "nvidia-h200-sxm"}) == "pair never together"
    assert seen.distance(**asked | {"card": "amd-mi300x"}) == "card never seen"
    assert seen.distance(**asked | {"engine": "other"}) == "engine never seen"


def test_an_estimate_says_of_what_runs_its_ranges_are():
    def ranges(name: str, model: Model) -> str:
        plan = Plan(pools=(Pool(layout=Layout(tp=8)),))
        cards = cluster(find(name), gpus=8)
        speed = estimate(
            Question(model=model, cluster=cards, workload=Serving(isl=512, osl=128, concurrency=8), plan=plan)
        ).speed
        assert speed is not None
        return speed.ranges

    assert ranges("h200-sxm", load_model("llama-3.1-70b-fp8")) == DISTANCES["own deployment"]
    assert (
        ranges("h200-sxm", llama_70b(FP8)) == DISTANCES["other model"]
    )  # Llama 2 of as many layers has a quarter of the words
    assert ranges("h100-pcie-80gb", llama_70b(FP8)) == DISTANCES["pair never together"]
    assert ranges("mi300x", llama_70b(FP8)) == OF_DATASHEETS  # no run and no kernel of such a card: the widest bounds


def test_what_sets_publishers_apart_widens_what_classes_say():
    work = model_work(llama_70b(FP8), find("h200-sxm"))
    machine = Machine.serving(cluster(find("h200-sxm"), gpus=8), work=work, engine="vllm")
    assert machine.terms is not None
    wide, bare = (
        replace(machine, terms=replace(machine.terms, apart={"tpot": apart, "ttft": 0.0}))
        for apart in (math.log(3.0), 0.0)
    )
    _, of_class = speed_spread(bare, llama_70b(FP8))["tpot"]
    low, high = speed_spread(wide, llama_70b(FP8))["tpot"]
    assert math.log(high) == -math.log(low) == pytest.approx(math.hypot(math.log(of_class), math.log(3.0)))
    assert speed_spread(wide, llama_70b(FP8))["output"] == (pytest.approx(low), pytest.approx(high))
    assert speed_spread(wide, llama_70b(FP8))["ttft"] == speed_spread(bare, llama_70b(FP8))["ttft"]


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


def test_models_of_one_depth_and_width_are_told_apart():
    """Llama-2-7B, Mistral-7B and Llama-3-8B are 32 layers of 4,096 all, and no runs of one are runs of another."""
    names = ("meta-llama/Llama-2-7b-hf", "mistralai/Mistral-7B-v0.1", "meta-llama/Meta-Llama-3-8B")
    shapes = [shape_of(load_model(name)) for name in names]
    assert all(shape.startswith("32 x 4096") for shape in shapes)
    assert len(set(shapes)) == 3
    assert shape_of(load_model("meta-llama/Llama-3.1-8B-Instruct")) == shapes[2]  # one model to a card
    assert shape_of(load_model("llama-3.1-70b-fp8")) == shape_of(load_model("llama-3.1-70b"))  # however it is stored
    assert "128/4/2880" in shape_of(load_model("openai/gpt-oss-120b"))
