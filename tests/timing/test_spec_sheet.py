"""The data behind spec-sheet timing: shares are shares, every card has a row, every row a source."""

from __future__ import annotations

import itertools

import pytest
from timing_cases import INT4, card, llama_70b, mixture

from trilemma.hardware.catalogue import all_accelerators
from trilemma.hardware.cluster import Cluster
from trilemma.plans import Layout
from trilemma.timing import Machine, coefficients_for, model_work, serving_speed, speed_explanation
from trilemma.timing.coefficients import spec_sheet
from trilemma.timing.intervals import speed_spread


def test_shares_are_shares_and_have_sources():
    data = spec_sheet()
    for row in data["card"]:
        assert row["source"] in data["sources"]
        shares = [*row["matmul"].values(), *row["stream"].values(), row["cache_stream"], row["prefill_attention"]]
        assert all(0 < share <= 1 for share in shares), row["name"]
    for section in ("kernels", "collectives", "host"):
        assert data[section]["source"] in data["sources"]


@pytest.mark.parametrize("accelerator", all_accelerators(), ids=lambda one: one.id)
def test_every_card_of_the_catalogue_can_be_timed(accelerator):
    machine = Machine.of(Cluster.of(accelerator, accelerator.gpus_per_node))
    work = model_work(llama_70b(), accelerator)
    tp = min(accelerator.gpus_per_node, 8)
    kv_format = llama_70b().dtype
    speed = serving_speed(work, machine, Layout(tp=tp), concurrency=8, isl=512, osl=128, kv_format=kv_format)
    assert 0 < float(speed.tpot_s) < 1000
    assert float(speed.ttft_s) > 0


def test_spread_is_wider_where_less_is_known():
    known, unknown = Machine.of(Cluster.of(card())), Machine.of(Cluster.of(card(capability=99.0)))
    assert coefficients_for(known.accelerator).known_card
    assert not unknown.coefficients.known_card
    for figure in ("ttft", "tpot"):
        bounds = [
            speed_spread(m, model)[figure]
            for m, model in ((known, llama_70b()), (known, mixture()), (unknown, mixture()))
        ]
        for (low, high), (wider_low, wider_high) in itertools.pairwise(bounds):
            assert wider_low <= low < 1 < high <= wider_high


def test_a_speed_explains_itself():
    machine = Machine.of(Cluster.of(card(), 8))
    words = "\n".join(speed_explanation(model_work(llama_70b(INT4), card()), machine))
    for fact in ("int4_g128 weights compute in bf16", "989 TFLOP/s", "3.35 TB/s", "aiconfigurator@095f58a51", "Hopper"):
        assert fact in words
