"""Limits with closed forms, and what must be conserved whatever the policy."""

from __future__ import annotations

import random

import pytest
from serving_engines import LinearTimes, served

from trilemma.simulation.serving import replica
from trilemma.simulation.serving.drawn import ArrivalProcess, LengthDistribution, drawn
from trilemma.simulation.serving.policies.prefill_first import PrefillFirst
from trilemma.simulation.serving.policies.token_budget import MaxUtilization, TokenBudget
from trilemma.simulation.serving.policies.whole_requests import Slots, WholeRequests
from trilemma.simulation.serving.traffic import Arrival

POLICIES = {
    "token budget": lambda: TokenBudget(tokens=512),
    "first chunks": lambda: TokenBudget(tokens=512, whole_prompts_fit=False),
    "prefill first": lambda: PrefillFirst(tokens=512, future_share=0.7, least_future_share=0.1, decay_steps=600),
    "whole prompts first": lambda: PrefillFirst(tokens=16384, chunked=False),
    "whole requests": lambda: WholeRequests(tokens=16384),
    "max utilization": lambda: MaxUtilization(tokens=16384),
    "slots": lambda: Slots(tokens=512),
}


def traffic(requests: int, seed: int, *, rate: float = 40.0) -> list[Arrival]:
    return list(
        drawn(
            ArrivalProcess.parse(f"poisson:{rate}"), LengthDistribution.parse("lognormal:300:1", "isl"),
            LengthDistribution.parse("lognormal:60:0.8", "osl"), requests=requests, seed=seed,
        )
    )  # fmt: skip


@pytest.mark.parametrize(("lengths", "spread"), [("1000", 0.0), ("exponential:1000", 1.0)])
def test_one_server_waits_as_queueing_theory_says(lengths: str, spread: float) -> None:
    """M/D/1 and M/M/1: mean wait ``busy / (1 - busy) * service * (1 + spread squared) / 2`` (Pollaczek and Khinchine)."""
    busy, each_s = 0.5, 1e-3
    arrivals = drawn(
        ArrivalProcess.parse(f"poisson:{busy}"), LengthDistribution.parse(lengths, "isl"),
        LengthDistribution.parse(1, "osl"), requests=60_000, seed=7,
    )  # fmt: skip
    _, book, _ = served(
        arrivals,
        policy=lambda: TokenBudget(tokens=10**6),
        times=LinearTimes(step_s=0.0, prompt_s=each_s),
        most_running=1,
    )
    wait_s = busy / (1 - busy) * (1 + spread**2) / 2
    assert book.completed == 60_000
    assert book.ttft.summary()["mean"] == pytest.approx(1.0 + wait_s, rel=0.02)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("blocks", [10**6, 700, 140])
def test_tokens_and_blocks_are_conserved(name: str, blocks: int) -> None:
    arrivals = traffic(300, seed=blocks)
    longest = max(one.isl + one.osl for one in arrivals)
    blocks = max(blocks, longest // 16 + 2)
    ended, book, (engine,) = served(
        arrivals, policy=POLICIES[name], blocks=blocks, most_running=64, times=LinearTimes(step_s=0.005, token_s=1e-5)
    )
    assert book.completed == len(arrivals)  # nobody starves
    assert sorted(one.index for one in ended) == list(range(len(arrivals)))
    assert book.output_tokens == sum(one.osl for one in arrivals)
    assert all(one.made == one.osl for one in ended)
    assert engine.pool.held == 0
    assert engine.pool.allocated == engine.pool.returned
    assert engine.pool.most_held <= blocks
    assert not engine.running
    assert engine.decoding == engine.context_sum == 0
    assert engine.blocks_due(1) == engine.blocks_due(37) == 0
    assert all(one.arrival.arrival_s <= one.first_s <= one.finish_s for one in ended)
    if name in ("whole requests", "slots"):
        assert engine.preemptions == 0


@pytest.mark.parametrize("name", ["token budget", "prefill first"])
def test_a_full_cache_throws_out_and_computes_again(name: str) -> None:
    arrivals = [Arrival(0.0, 100, 400) for _ in range(8)]
    ended, book, (engine,) = served(arrivals, policy=POLICIES[name], blocks=100, times=LinearTimes())
    assert engine.preemptions > 0
    assert book.completed == 8
    assert max(one.preempted for one in ended) >= 1


def test_leaps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = traffic(200, seed=3)
    times = LinearTimes(step_s=0.004, token_s=2e-5, context_s=1e-8, prompt_s=1e-5)
    leaping, *_ = served(arrivals, times=times, blocks=250, most_running=32)
    monkeypatch.setattr(replica, "_LONGEST_LEAP", 1)
    stepping, _, (engine,) = served(arrivals, times=times, blocks=250, most_running=32)
    assert engine.preemptions > 0
    for one, other in zip(leaping, stepping, strict=True):
        assert one.index == other.index
        assert one.finish_s == pytest.approx(other.finish_s, rel=1e-9)
        assert one.first_s == pytest.approx(other.first_s, rel=1e-9)


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [[(one.index, one.finish_s) for one in served(traffic(150, seed=5), blocks=400)[0]] for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != [(one.index, one.finish_s) for one in served(traffic(150, seed=6), blocks=400)[0]]


def test_one_request_by_hand() -> None:
    """A prompt of 100 in chunks of 64 and 36, then four more tokens: two steps that prefill and four that decode."""
    times = LinearTimes(step_s=1.0, token_s=0.1, prompt_s=0.01)
    (one,), _, (engine,) = served([Arrival(2.0, 100, 5)], policy=lambda: TokenBudget(tokens=64), times=times)
    assert one.first_s == pytest.approx(2.0 + (1 + 0.64) + (1 + 0.36))
    assert one.finish_s == pytest.approx(one.first_s + 4 * 1.1)
    assert engine.pool.allocated == 7  # blocks of 16 for 104 tokens: the last one made is never computed
    assert engine.gauges.gaps.count == 4
    assert engine.gauges.gaps.total == pytest.approx(4.4)


def test_a_request_that_arrives_in_a_leap_is_seen_at_the_end_of_its_step() -> None:
    times = LinearTimes(step_s=1.0)
    ended, *_ = served([Arrival(0.0, 10, 50), Arrival(7.3, 10, 2)], times=times)
    second = next(one for one in ended if one.index == 1)
    assert second.first_s == pytest.approx(9.0)  # the step under way ends at 8, its prompt at 9


def test_decoding_waits_for_prompts_where_the_policy_says_so() -> None:
    times = LinearTimes(step_s=1.0, prompt_s=0.01)
    arrivals = [Arrival(0.0, 10, 6), Arrival(2.5, 400, 2)]
    along, *_ = served(arrivals, times=times)
    first, *_ = served(arrivals, times=times, policy=lambda: PrefillFirst(tokens=8192))
    token_along, token_first = (next(one for one in ended if one.index == 0).finish_s for ended in (along, first))
    assert token_first - token_along == pytest.approx(1.0)  # a step of its own for the prompt


def test_clients_that_give_up_leave_their_blocks() -> None:
    times = LinearTimes(step_s=1.0)
    ended, book, (engine,) = served(
        [Arrival(0.0, 10, 100), Arrival(0.0, 10, 5), Arrival(1.0, 10, 100)], times=times, most_running=2, timeout_s=20.0
    )
    assert [one.index for one in ended] == [1]
    assert book.abandoned == 2
    assert engine.pool.held == 0


def test_what_never_fits_is_refused_and_holds_up_nobody() -> None:
    arrivals = [Arrival(0.0, 5000, 10), Arrival(0.1, 10, 10)]
    _, book, _ = served(arrivals, blocks=100, most_tokens=10**6)
    assert (book.completed, book.rejected) == (1, 1)
    _, book, _ = served(arrivals, blocks=100, most_tokens=1600)
    assert (book.completed, book.rejected) == (1, 1)


def test_a_thousand_requests_of_random_shapes_end() -> None:
    shapes = random.Random(1)
    arrivals, now_s = [], 0.0
    for _ in range(1000):
        now_s += shapes.choice([0.0, 0.001, 0.5])
        arrivals.append(
            Arrival(now_s, shapes.randint(1, 900), shapes.randint(1, 90), session=shapes.choice([None, "a", "b"]))
        )
    for policy in POLICIES.values():
        _, book, engines = served(arrivals, policy=policy, blocks=80, most_running=9, engines=2)
        assert book.completed == 1000
        assert all(one.pool.allocated == one.pool.returned for one in engines)


def test_thousands_that_never_fit_are_refused_one_after_the_other() -> None:
    arrivals = [Arrival(0.0, 5000, 10)] * 3000 + [Arrival(0.1, 10, 10)]
    _, book, _ = served(arrivals, blocks=100, most_tokens=10**6)
    assert (book.completed, book.rejected) == (1, 3000)


def test_a_scheduler_that_works_ahead_sees_a_request_a_step_late() -> None:
    """vLLM from 0.14 on (async scheduling, v1/engine/core.py step_with_batch_queue): while a step runs the next is scheduled, so
    what comes meanwhile is in the one after that."""
    first, second = Arrival(0.0, 10, 50), Arrival(2.5, 10, 5)
    times = LinearTimes(step_s=1.0)
    at_once, ahead = (served([first, second], times=times, lag_steps=lag)[0] for lag in (0.0, 1.0))
    # the step under way at 2.5 s ends at 3 s, its prompt is in the next: first token at 4 s; a step later where one is ahead
    assert next(one.first_s for one in at_once if one.index == 1) == pytest.approx(4.0)
    assert next(one.first_s for one in ahead if one.index == 1) == pytest.approx(5.0)
    # an idle engine takes it at once, and no request is left behind
    alone = served([Arrival(2.5, 10, 5), Arrival(100.0, 10, 5)], times=times, lag_steps=1.0)[0]
    assert [one.first_s - one.arrival.arrival_s for one in alone] == [pytest.approx(1.0)] * 2
    many = [Arrival(0.3 * at, 10, 3 + at % 5) for at in range(200)]
    _, book, (engine,) = served(many, times=times, lag_steps=0.7, most_running=3)
    assert book.completed == 200
    assert engine.pool.held == 0


def test_the_wait_for_the_scheduler_is_told_apart() -> None:
    """Two prompts of 10 s each under a budget of one: the second is taken in when the first is computed."""
    times = LinearTimes(step_s=0.0, prompt_s=1.0)
    ended, book, _ = served(
        [Arrival(0.0, 10, 1), Arrival(1.0, 10, 1)], times=times, policy=lambda: TokenBudget(tokens=10)
    )
    assert [one.entered_s for one in sorted(ended, key=lambda one: one.index)] == [0.0, 10.0]
    assert book.queue.summary()["mean"] == pytest.approx((0.0 + 9.0) / 2)
    assert book.ttft.summary()["mean"] == pytest.approx((10.0 + 19.0) / 2)
