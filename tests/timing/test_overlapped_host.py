"""Schedulers that prepare a step while the cards compute another: what of the host's time a token still sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timing_cases import BF16, card, cluster, llama_70b

import trilemma as tl
from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work


def host_s(power: float, *, batch: float, sequence_s: float = 37e-6) -> float:
    """Seconds on the line of the host of a step of Llama-2-70B on eight H100, the fixed time taken away."""
    plain = Machine.of(cluster(card()))
    numbers = plain.coefficients.with_numbers(host_overlap_power=power, sequence_s=sequence_s)
    machine = replace(plain, coefficients=numbers)
    step = decode_step(
        model_work(llama_70b(), card()), machine, Layout(tp=8), batch=batch, context=1024, kv_format=BF16
    )
    return float(step.lines["host"] - numbers.step_s)


def test_a_host_that_takes_turns_is_paid_whole():
    assert host_s(1.0, batch=64) == pytest.approx(64 * 37e-6)


def test_a_host_that_works_ahead_is_hidden_until_it_takes_longer_than_the_cards():
    # 48 requests of Qwen3-32B at TP 4 took 44.20 ms a token with vLLM's synchronous scheduler and 41.73 with the asynchronous one
    # (vllm-ascend): nearly all of the host's 48 times 37 us were hidden
    assert host_s(3.0, batch=48) < 0.1 * 48 * 37e-6
    slow = host_s(3.0, batch=48, sequence_s=1.0)  # the cards are done long before
    cards = 48.0 - slow
    assert 0 < cards < 0.1
    assert slow == pytest.approx(48.0 - cards)


@pytest.mark.parametrize("batch", [1.0, 16.0, 256.0, 4096.0])
def test_working_ahead_is_never_slower(batch):
    powers = [host_s(power, batch=batch) for power in (1.0, 2.0, 3.0, 6.0)]
    assert all(np.diff(powers) <= 0)
    assert all(one >= 0 for one in powers)


@pytest.mark.parametrize(
    ("engine", "ahead", "in_turn"),
    [
        ("vllm", "vllm serve Qwen/Qwen3-8B", "vllm serve Qwen/Qwen3-8B --no-async-scheduling"),
        (
            "sglang",
            "python -m sglang.launch_server --model-path Qwen/Qwen3-8B",
            "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disable-overlap-schedule",
        ),
    ],
)
def test_the_flag_of_an_engine_that_turns_it_off_is_heard(engine, ahead, in_turn):
    """The time per token of 128 readers is longer by what 128 sequences take of the host, less what was not hidden before."""
    load = {"gpu": "h100-sxm", "isl": 1024, "osl": 1024, "concurrency": 128}
    hidden, paid = (float(tl.check(command, **load).speed.tpot_s.interval.value) for command in (ahead, in_turn))
    assert 1e-3 < paid - hidden < 128 * 60e-6, engine
