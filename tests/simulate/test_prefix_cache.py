"""What is found in the cache: stretches that prompts share, what a request left when it was thrown out, conversations."""

from __future__ import annotations

import numpy as np
import pytest
from serving_engines import LinearTimes, served

from trilemma.simulation.serving.blocks import BlockPool
from trilemma.simulation.serving.traffic import Arrival


def test_the_least_recently_left_goes_first_and_ends_before_beginnings() -> None:
    pool = BlockPool(10)
    pool.take(8)
    pool.give_back(4, "a")
    pool.give_back(4, "b")
    pool.take(4)  # two are empty, two come from the end of "a"
    assert (pool.left_of("a"), pool.left_of("b")) == (2, 4)
    pool.claim("a", 2)
    assert (pool.held, pool.kept, pool.free) == (6, 4, 4)
    pool.take(4)
    assert (pool.left_of("b"), pool.held) == (0, 10)


def test_shared_stretches_are_held_once() -> None:
    prompts = [Arrival(float(at), 64, 4, ("system", f"q{at}"), 32) for at in range(5)]
    _, _, (engine,) = served(prompts, times=LinearTimes(step_s=0.1), block_size=16)
    assert (engine.cache.hit_stretches, engine.cache.asked_stretches) == (4, 10)
    assert engine.cache.hit_tokens == 4 * 32


def test_the_last_token_is_computed_however_much_is_there() -> None:
    prompts = [Arrival(10.0 * at, 64, 4, ("a", "b"), 32) for at in range(2)]
    ended, _, (engine,) = served(prompts, times=LinearTimes(step_s=0.1, prompt_s=0.01), block_size=16)
    assert engine.cache.hit_tokens == 48
    assert ended[1].first_s - ended[1].arrival.arrival_s == pytest.approx(0.1 + 16 * 0.01)


def test_a_conversation_finds_what_it_left() -> None:
    turns = [
        Arrival(0.0, 100, 60, session="s"),
        Arrival(50.0, 200, 10, session="s"),
        Arrival(60.0, 200, 10, session="t"),
    ]
    _, _, (engine,) = served(turns, times=LinearTimes(step_s=0.1))
    assert engine.cache.hit_tokens == 144  # nine whole blocks of the 159 tokens that were computed


def test_a_request_thrown_out_finds_what_was_not_taken() -> None:
    arrivals = [Arrival(0.0, 160, 200), Arrival(0.0, 160, 200)]
    ended, _, (engine,) = served(arrivals, blocks=25, times=LinearTimes(step_s=0.1, prompt_s=0.001))
    assert engine.preemptions >= 1
    again = next(one for one in ended if one.preempted)
    assert again.finish_s > max(one.finish_s for one in ended if not one.preempted)


def test_without_prefix_cache_nothing_is_found() -> None:
    prompts = [Arrival(float(at), 64, 4, ("a", "b"), 32) for at in range(3)]
    _, _, (engine,) = served(prompts, times=LinearTimes(step_s=0.1), finds_prefixes=False)
    assert engine.cache.hit_tokens == 0


def test_numbers_name_stretches_and_requests_apart() -> None:
    prompts = [Arrival(10.0 * at, 96, 4, (0, 1, 2), 32) for at in range(4)]
    _, _, (engine,) = served(prompts, times=LinearTimes(step_s=0.1), block_size=16)
    assert (engine.cache.hit_stretches, engine.cache.asked_stretches) == (9, 12)


def test_without_limit_the_hit_rate_is_the_reuse_of_the_trace() -> None:
    """Each stretch that was in an earlier prompt at the same place is found, whole prompts but for their last token."""
    shapes = np.random.default_rng(4)
    names: list[tuple[int, ...]] = [()]
    prompts, seen, reused, total = [], set(), 0, 0
    for at in range(400):
        base = names[int(shapes.integers(0, len(names)))]
        added = tuple(1000 * at + part for part in range(int(shapes.integers(1, 5))))
        names.append(base + added)
        prompt = (*names[-1], -at - 1)  # the last stretch is not full and like no other
        prompts.append(Arrival(100.0 * at, 512 * len(names[-1]) + int(shapes.integers(1, 512)), 5, prompt, 512))
        reused += sum(name in seen for name in prompt)
        total += len(prompt)
        seen |= set(prompt)
    _, _, (engine,) = served(prompts, times=LinearTimes(step_s=0.1), block_size=16)
    assert engine.cache.asked_stretches == total
    assert engine.cache.hit_stretches == pytest.approx(reused, rel=0.003)
