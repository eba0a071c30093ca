"""Caches that leave the card for the host's memory: what comes back, when, and what was written for it."""

from __future__ import annotations

import pytest
from serving_engines import LinearTimes, served

import trilemma as tl
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.simulation.serving.blocks import BlockPool
from trilemma.simulation.serving.event_loop import run
from trilemma.simulation.serving.front import Front
from trilemma.simulation.serving.gauges import Gauges
from trilemma.simulation.serving.host_cache import HostCache
from trilemma.simulation.serving.ledger import RequestBook
from trilemma.simulation.serving.policies.prefill_first import PrefillFirst
from trilemma.simulation.serving.policies.token_budget import TokenBudget
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.request_cache import RequestCache
from trilemma.simulation.serving.routers import InTurn
from trilemma.simulation.serving.traffic import Arrival

PLAN = ("llama-3.1-8b", "h100-sxm")
#: A conversation, one that takes the whole cache, and the conversation again: 12 blocks of 16 tokens were left by its first turn.
TURNS = (Arrival(0.0, 160, 33, session="s"), Arrival(100.0, 310, 2), Arrival(200.0, 200, 2, session="s"))


def with_host(arrivals, *, blocks=20, host=1000, block_s=0.5, through=True, before=True, policy=TokenBudget):
    ended, book = [], RequestBook()
    book._each = ended.append
    memory = HostCache(host, block_s=block_s, writes_through=through, before=before)
    engine = EngineReplica(
        policy(tokens=8192), LinearTimes(step_s=1.0, prompt_s=0.1), RequestCache(BlockPool(blocks), block_size=16, host=memory),
        most_running=64, done=book.done, refused=book.refused, gauges=Gauges(),
    )  # fmt: skip
    front = Front(InTurn(), handling_s=0.0, each_s=0.0, most_tokens=10**9, most_prompt=10**9, refused=book.refused)
    run(arrivals, front, [engine])
    return {one.index: one for one in ended}, memory, engine


def test_without_it_all_is_computed_again() -> None:
    ended, _, _ = served(TURNS, blocks=20, times=LinearTimes(step_s=1.0, prompt_s=0.1))
    assert ended[-1].first_s - 200.0 == pytest.approx(1.0 + 200 * 0.1)


@pytest.mark.parametrize("through", [True, False])
def test_what_was_thrown_out_comes_back(through: bool) -> None:
    ended, memory, engine = with_host(TURNS, through=through)
    back_s = 12 * 0.5  # 192 tokens, then 8 are computed
    assert ended[2].first_s - 200.0 == pytest.approx(back_s + 1.0 + 8 * 0.1)
    assert memory.loaded == 12
    assert engine.cache.host_tokens == 192
    assert engine.pool.held == 0


def test_a_step_that_loads_within_ends_with_the_longer_of_both() -> None:
    slow, _, _ = with_host(TURNS, before=False, policy=PrefillFirst)
    assert slow[2].first_s - 200.0 == pytest.approx(12 * 0.5)
    quick, _, _ = with_host(TURNS, before=False, policy=PrefillFirst, block_s=0.01)
    assert quick[2].first_s - 200.0 == pytest.approx(1.0 + 8 * 0.1)


def test_others_go_on_while_one_waits() -> None:
    """vLLM's WAITING_FOR_REMOTE_KVS: it holds its blocks, and takes part in no step until they are filled."""
    other = Arrival(200.5, 20, 2)
    ended, _, _ = with_host([*TURNS, other], blocks=22, block_s=0.5)
    assert ended[3].first_s == pytest.approx(200.5 + 1.0 + 20 * 0.1)
    assert ended[3].finish_s == pytest.approx(ended[3].first_s + 1.0)
    assert ended[2].first_s >= 205.0


def test_through_writes_what_is_computed_back_only_what_is_thrown_out() -> None:
    lone = [Arrival(0.0, 160, 33, session="s")]
    assert with_host(lone, through=True)[1].stored == 12
    assert with_host(lone, through=False)[1].stored == 0
    _, memory, _ = with_host(TURNS[:2], through=False)
    assert memory.stored == 12


def test_the_host_throws_out_what_was_used_longest_ago() -> None:
    memory = HostCache(10, block_s=1.0, writes_through=True, before=True)
    memory.store("a", 4)
    memory.store("b", 4)
    memory.touch(["a"])
    memory.store("c", 4)
    assert [memory.blocks_of(one) for one in "abc"] == [4, 2, 4]
    assert memory.found(["a", "b", "c"], 4, 100) == (2, 6)
    assert (memory.load(2, 5.0), memory.load(1, 6.0)) == (7.0, 8.0)  # one after another


def test_stretches_come_back_behind_those_on_the_card() -> None:
    """The second prompt takes the room of the end of the first: its beginning is on the card, the rest on the host."""
    names = tuple(f"n{at}" for at in range(10))
    turns = [
        Arrival(0.0, 161, 2, (*names, "end"), 16),
        Arrival(50.0, 200, 2),
        Arrival(100.0, 161, 2, (*names, "other"), 16),
    ]
    ended, memory, engine = with_host(turns, blocks=20)
    assert engine.cache.hit_tokens == 160
    assert 0 < memory.loaded < 10
    assert engine.cache.host_tokens == 16 * memory.loaded
    assert ended[2].first_s - 100.0 == pytest.approx(0.5 * memory.loaded + 1.0 + 0.1)


def test_seconds_are_those_of_the_link() -> None:
    """131,072 bytes a token of Llama-3-8B; 80 % of PCIe."""
    options = {"arrivals": "users:60", "turns": "6", "think": "10", "isl": 2000, "osl": 20, "requests": 600}
    found = tl.simulate(*PLAN, **options, kv_offload=512, bounds=False).to_dict()
    host = found["host_cache"]
    assert host["blocks"] == int(512 * 2**30 / (131_072 * 16))
    pcie = find("h100-sxm").pcie_bytes_per_s.value
    assert host["wait_ms"] > 1e3 * 2000 * 131_072 / (0.8 * pcie)
    assert 0 < host["token_hit_rate"] <= found["cache"]["token_hit_rate"]
    plain = tl.simulate(*PLAN, **options, bounds=False).to_dict()
    assert found["metrics"]["ttft_ms"]["mean"] < plain["metrics"]["ttft_ms"]["mean"]
    assert "host_cache" not in plain


def test_where_it_cannot_be_is_said() -> None:
    load = {"arrivals": "poisson:1", "isl": 100, "osl": 10}
    with pytest.raises(InputError, match=r"vllm 0\.12 keeps caches in the host's memory"):
        tl.simulate(*PLAN, engine="vllm@0.12", kv_offload=8, **load)
    with pytest.raises(InputError, match="holds no block"):
        tl.simulate(*PLAN, kv_offload=0.001, **load)
    with pytest.raises(InputError, match="share one memory"):
        tl.simulate("llama-3.1-8b", "gb10", kv_offload=8, **load)
    with pytest.raises(InputError, match="out of range"):
        tl.simulate(*PLAN, kv_offload=-1, **load)
