"""Adapters in a simulated engine: slots, loads, what they add to a step, and the traffic that asks for them."""

from __future__ import annotations

import json

import pytest
from serving_engines import LinearTimes, served

import trilemma as tl
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.adapter_slots import AdapterSlots
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.simulation.serving.adapter_bank import AdapterBank
from trilemma.simulation.serving.adapter_traffic import AdapterMix, with_adapter_names
from trilemma.simulation.serving.traffic import Arrival, Traffic
from trilemma.timing import Machine
from trilemma.timing.adapters import AdapterCost, adapter_cost

FREE = AdapterCost(launches_s=0.0, adapter_s=0.0, row_s=0.0, load_s=0.0)
PLAN = ("llama-3.1-8b", "h100-sxm")


def answered(arrivals, cost=FREE, **bank):
    ended, _, (engine,) = served(arrivals, times=LinearTimes(step_s=1.0), adapters=AdapterBank(cost, **bank))
    return {one.index: one for one in ended}, engine


def test_a_request_whose_adapter_finds_no_slot_is_passed_over() -> None:
    ended, engine = answered(
        [Arrival(0.0, 10, 5, adapter="a"), Arrival(0.5, 10, 2, adapter="b"), Arrival(0.6, 10, 2, adapter="a"),
         Arrival(0.7, 10, 2)], slots=1,
    )  # fmt: skip
    assert [ended[at].first_s for at in range(4)] == [1.0, 6.0, 2.0, 2.0]
    assert engine.adapters.loads == 2


def test_as_many_adapters_run_at_once_as_there_are_slots() -> None:
    ended, _ = answered([Arrival(0.0, 10, 3, adapter=name) for name in "abc"], slots=2)
    assert [ended[at].first_s for at in range(3)] == [1.0, 1.0, 4.0]


def test_a_later_request_may_pass_whoever_waits_for_a_slot() -> None:
    """What arrives in the middle of a run of steps is looked at, though another stands before it."""
    arrivals = [Arrival(0.0, 10, 100, adapter="a"), Arrival(1.5, 10, 2, adapter="b"), Arrival(10.5, 10, 2, adapter="a")]
    ended, _ = answered(arrivals, slots=1)
    assert ended[2].first_s == 12.0
    assert ended[1].first_s == 101.0


def test_the_step_waits_for_a_load_and_the_oldest_slot_is_taken() -> None:
    cost = AdapterCost(launches_s=0.0, adapter_s=0.0, row_s=0.0, load_s=0.25)
    names = "abab" + "cb" + "a"
    ended, engine = answered(
        [Arrival(10.0 * at, 10, 2, adapter=name) for at, name in enumerate(names)], cost, slots=2, read_s=2.0, kept=2
    )
    waits = [ended[at].first_s - 10.0 * at for at in range(len(names))]
    # a, b: read and loaded; c takes the slot of a, and its place on the host; a is read again
    assert waits == pytest.approx([3.25, 3.25, 1.0, 1.0, 3.25, 1.0, 3.25])
    assert (engine.adapters.loads, engine.adapters.reads) == (4, 4)


def test_a_step_is_longer_by_launches_and_the_longer_of_reads_and_products() -> None:
    cost = AdapterCost(launches_s=0.1, adapter_s=0.05, row_s=0.001, load_s=0.0)
    ended, _ = answered([Arrival(0.0, 200, 3, adapter="a")], cost, slots=1)
    assert ended[0].first_s == pytest.approx(1.0 + 0.1 + 0.2)  # 200 rows
    assert ended[0].finish_s - ended[0].first_s == pytest.approx(2 * (1.0 + 0.1 + 0.05))
    ended, _ = answered([Arrival(0.0, 200, 3)], cost, slots=1)
    assert ended[0].finish_s == 3.0


def test_the_cost_of_a_rank_is_that_of_its_parameters() -> None:
    """LoRA of rank 16 on every linear layer of Llama-3-8B has 41,943,040 parameters (PEFT, print_trainable_parameters)."""
    model, card = load_model("llama-3.1-8b"), find("h100-sxm")
    slots = AdapterSlots(slots=8, rank=16, format=catalogue.get("bf16"), targets=("all-linear",))
    machine = Machine.of(Cluster(accelerator=card, gpus=1, gpus_per_node=1), "vllm")
    one, two = (adapter_cost(model, machine, Layout(tp=tp), slots) for tp in (1, 2))
    n_bytes = 2 * 41_943_040
    share = float(machine.coefficients.stream_share(16))
    assert one.adapter_s == pytest.approx(n_bytes / (card.bandwidth_bytes_per_s.value * share))
    assert one.launches_s == pytest.approx(2 * 4 * 32 * float(machine.coefficients.kernel_s))
    assert one.row_s == pytest.approx(
        2 * 41_943_040 / (card.peak_flops["bf16"].value * float(machine.coefficients.matmul_share("bf16")))
    )
    assert 0.5 < two.adapter_s / one.adapter_s < 1  # one half of each is whole on both ranks


def test_popularity_by_zipf_and_a_session_keeps_its_adapter() -> None:
    arrivals = [Arrival(float(at), 10, 2, session=None if at % 2 else f"s{at % 20}") for at in range(4000)]
    found = list(with_adapter_names(Traffic(arrivals), AdapterMix.parse("10:1"), 3))
    alone = [one.adapter for one in found if one.session is None]
    expected = 1 / sum(1 / at for at in range(1, 11))
    assert alone.count("adapter 1") / len(alone) == pytest.approx(expected, abs=0.03)
    assert len({(one.session, one.adapter) for one in found if one.session}) == 10
    assert [one.adapter for one in with_adapter_names(Traffic(arrivals), AdapterMix.parse("10:1"), 3)] == [
        one.adapter for one in found
    ]


def test_what_one_adapter_left_in_the_cache_no_other_finds() -> None:
    prompts = [Arrival(10.0 * at, 64, 2, ("system",), 64, adapter=name) for at, name in enumerate("aba")]
    named = with_adapter_names(Traffic(prompts), None, 0)
    _, _, (engine,) = served(named, adapters=AdapterBank(FREE, slots=2))
    assert engine.cache.hit_stretches == 1


def test_a_trace_names_them_and_slots_take_room_from_the_cache(tmp_path) -> None:
    trace = tmp_path / "t.jsonl"
    rows = [{"arrival": at / 4, "input": 500, "output": 50, "lora": f"a{at % 3}"} for at in range(60)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    with_them = tl.simulate(*PLAN, trace=trace, max_loras=2, bounds=False).to_dict()
    drawn = tl.simulate(*PLAN, arrivals="poisson:4", isl=500, osl=50, requests=60, bounds=False).to_dict()
    assert with_them["adapters"]["slots"] == 2
    assert with_them["adapters"]["loads"] >= 3
    assert with_them["cache"]["blocks"] < drawn["cache"]["blocks"]
    assert "adapters" not in drawn


def test_engines_whose_rules_are_not_known_are_refused() -> None:
    with pytest.raises(InputError, match=r"llama\.cpp serves adapters"):
        tl.simulate(*PLAN, engine="llama.cpp", arrivals="poisson:1", isl=100, osl=10, adapters="4")
    with pytest.raises(InputError, match="`max_loras` is of adapters"):
        tl.simulate(*PLAN, arrivals="poisson:1", isl=100, osl=10, max_loras=4)
    with pytest.raises(InputError, match="`lora_read` -5 is out of range"):
        tl.simulate(*PLAN, arrivals="poisson:1", isl=100, osl=10, adapters="4", lora_read=-5)
    for words in ("0", "4:-1", "many", "4:x", "9" * 5000, "²"):
        with pytest.raises(InputError, match="`adapters`"):
            AdapterMix.parse(words)
