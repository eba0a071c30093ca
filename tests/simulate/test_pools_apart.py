"""Prefill and decode in pools of their own: where the time goes, what is conserved, and what users who wait for answers see."""

from __future__ import annotations

from functools import partial

import pytest
from serving_engines import LinearTimes

import trilemma as tl
from trilemma.errors import InputError
from trilemma.simulation.serving.blocks import BlockPool
from trilemma.simulation.serving.event_loop import run
from trilemma.simulation.serving.front import Front
from trilemma.simulation.serving.gauges import Gauges
from trilemma.simulation.serving.handover import Handover, TransferTimes
from trilemma.simulation.serving.later import Later
from trilemma.simulation.serving.ledger import RequestBook
from trilemma.simulation.serving.policies.prefill_first import PrefillFirst
from trilemma.simulation.serving.policies.token_budget import TokenBudget
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.request_cache import RequestCache
from trilemma.simulation.serving.routers import InTurn, LeastLoaded
from trilemma.simulation.serving.traffic import Arrival, ServedRequest


def served_apart(arrivals, *, prefilling=1, decoding=1, blocks=10**6, policy=TokenBudget, transfer_s=0.5):
    """Steps of 1 s in prefill and 0.1 s in decode; the cache of a prompt travels for ``transfer_s``."""
    ended: list[ServedRequest] = []
    book, later = RequestBook(each=ended.append), Later()
    times = TransferTimes(lengths=(1.0, 10_000.0), seconds=(transfer_s, transfer_s))
    handover = Handover(times, prefilling=prefilling, route=LeastLoaded(), later=later, finished=book.done)

    def engine(step_s, done):
        cache = RequestCache(BlockPool(blocks), block_size=16)
        return EngineReplica(
            policy(tokens=100), LinearTimes(step_s=step_s), cache, most_running=256, done=done, refused=book.refused,
            gauges=Gauges(),
        )  # fmt: skip

    first = [engine(1.0, partial(handover.prefilled, at)) for at in range(prefilling)]
    then = [engine(0.1, book.done) for _ in range(decoding)]
    front = Front(
        InTurn(), handling_s=0.0, each_s=0.0, most_tokens=10**9, most_prompt=10**9, refused=book.refused,
        prefilling=prefilling,
    )  # fmt: skip
    run(arrivals, front, [*first, *then], (), later)
    return ended, book, first, then


@pytest.mark.parametrize("policy", [TokenBudget, PrefillFirst])
def test_a_request_is_prefilled_sent_and_decoded(policy) -> None:
    ended, book, (prefill,), (decode,) = served_apart([Arrival(0.0, 100, 11)], policy=policy)
    assert ended[0].first_s == pytest.approx(1.0 + 0.5)
    assert ended[0].finish_s == pytest.approx(1.0 + 0.5 + 10 * 0.1)
    assert book.output_tokens == 11
    assert decode.steps == 10  # no prefill falls into them
    assert prefill.steps == 0
    for one in (prefill, decode):
        assert one.pool.held == 0
        assert one.pool.allocated == one.pool.returned > 0


def test_prompts_travel_one_after_another_from_each_engine() -> None:
    # 100 tokens fill a step: prompts end at 1, 2, 3 s and travel for 2 s each: there at 3, 5, 7 s
    three = [Arrival(0.0, 100, 2)] * 3
    ended, *_ = served_apart(three, transfer_s=2.0)
    assert [one.first_s for one in ended] == [pytest.approx(at) for at in (3.0, 5.0, 7.0)]
    apart, *_ = served_apart(three, prefilling=3, transfer_s=2.0)
    assert [one.first_s for one in apart] == [pytest.approx(3.0)] * 3


def test_a_single_token_is_all_prefill_and_nothing_is_lost_where_decode_is_full() -> None:
    ended, _, _, (decode,) = served_apart([Arrival(0.0, 100, 1)])
    assert ended[0].finish_s == pytest.approx(1.0)
    assert decode.steps == 0
    # a cache of 40 blocks holds three of these as they come, not as they end: some are thrown out and computed again here
    many = [Arrival(0.0, 160, 200)] * 8
    ended, book, first, (decode,) = served_apart(many, blocks=40, transfer_s=0.0)
    assert book.completed == 8
    assert decode.preemptions > 0
    assert all(one.pool.held == 0 and one.pool.allocated == one.pool.returned for one in (*first, decode))


def test_the_simulation_agrees_with_the_closed_form_where_nobody_waits() -> None:
    load = {"isl": 4000, "osl": 300}
    apart = {"prefill": "2xTP4", "decode": "2xTP4"}
    fit = tl.fit("llama-3.1-70b", "h100-sxm:16", concurrency=1, **load, **apart).to_dict()["speed"]
    seen = tl.simulate(
        "llama-3.1-70b", "h100-sxm:16", arrivals="users:1", requests=20, bounds=False, **load, **apart
    ).to_dict()  # fmt: skip
    assert seen["metrics"]["tpot_ms"]["mean"] == pytest.approx(fit["tpot_ms"]["value"], rel=0.02)
    # the closed form has a request wait for a part of a step before it joins
    assert fit["ttft_ms"]["value"] - 25 < seen["metrics"]["ttft_ms"]["mean"] <= fit["ttft_ms"]["value"] * 1.001
    assert seen["inputs"]["pools"]["prefill"]["replicas"] == 2


def test_pools_do_not_come_and_go() -> None:
    with pytest.raises(InputError, match="of one pool"):
        tl.simulate(
            "llama-3.1-8b", "h100-sxm:2", arrivals="burst", isl=10, osl=10, prefill="1xTP1", decode="1xTP1",
            autoscale="1:2:3:4",
        )  # fmt: skip


def test_first_tokens_of_pools_at_a_rate_are_those_of_the_simulation() -> None:
    load = {"isl": 4000, "osl": 300, "prefill": "2xTP4", "decode": "2xTP4"}
    said = tl.fit("llama-3.1-70b", "h100-sxm:16", rate=3, **load).to_dict()["speed"]["ttft_ms"]["value"]
    seen = tl.simulate("llama-3.1-70b", "h100-sxm:16", arrivals="poisson:3", bounds=False, **load).to_dict()
    assert said == pytest.approx(seen["metrics"]["ttft_ms"]["mean"], rel=0.08)


def test_engines_of_one_card_are_named_in_one_space() -> None:
    found = tl.simulate(
        "llama-3.1-8b", "h100-sxm:4", arrivals="poisson:2", isl=500, osl=20, requests=10, bounds=False,
        prefill="2xTP1", decode="1xTP2",
    )  # fmt: skip
    assert "2 engines prefill + TP2 decode" in found.show()
