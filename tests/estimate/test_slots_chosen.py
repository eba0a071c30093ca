"""Into how many slots llama.cpp's cache is cut where nobody says so."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.estimate.estimate import Estimate


def asked(model: str, gpu: str, free_gib: float | None, **load: int) -> Estimate:
    return tl.fit(model, gpu, engine="llama.cpp", precision="Q4_K_M", free_gib=free_gib, **load)


def speed(answer: Estimate) -> float:
    assert answer.speed is not None
    assert answer.speed.output_tokens_per_s is not None
    return answer.speed.output_tokens_per_s.value


def test_more_memory_is_not_spent_on_layers_that_slots_would_repay() -> None:
    """Scout lies partly on the host with 25 and with 31 GiB of card: both requests share each reading of it."""
    less, more = (asked("llama-4-scout", "rtx-5090", gib, isl=1024, osl=2048, concurrency=2) for gib in (25.1, 31.0))
    assert less.question.plan.pool.options.max_seqs == more.question.plan.pool.options.max_seqs == 2
    assert speed(more) > speed(less)


def test_slots_leave_a_model_on_the_cards_where_it_fits() -> None:
    """Mixtral fits on 31 GiB with eight slots of 2,304 tokens; 128 of them would send most of it to the host."""
    answer = asked("mixtral-8x7b", "rtx-5090", 31.0, isl=128, osl=2048, concurrency=128)
    assert answer.question.plan.pool.options.max_seqs == 8
    assert not answer.uses_host


def test_the_command_of_one_copy_of_several_names_its_cards() -> None:
    """llama-server takes every card that it sees: a copy for one of four is told so, and checked on four it is the same."""
    best = tl.plan("qwen3-30b-a3b", "a10:4", engine="llama.cpp", serve="2048/256", concurrency=16).best
    assert best is not None
    assert best.question.plan.pool.replicas == 4
    assert str(best.command).startswith("CUDA_VISIBLE_DEVICES=0 llama-server ")
    again = tl.check(str(best.command), gpu="a10:4", isl=2048, osl=256, concurrency=4)
    assert again.memory.usable_bytes == best.memory.usable_bytes


def test_slots_of_what_lies_on_the_host_are_those_that_yield_the_most() -> None:
    """Each prompt of 32,000 tokens in micro-batches of 8,192 copies what lies there: a second slot sends more of it there."""
    load = {"isl": 32000, "osl": 128, "concurrency": 128, "max_batched_tokens": 8192}
    chosen = asked("qwen3-32b", "rtx-4090", None, **load)
    others = [asked("qwen3-32b", "rtx-4090", None, max_seqs=slots, **load) for slots in (1, 2, 4, 8)]
    assert chosen.uses_host
    assert speed(chosen) == max(map(speed, others))


def test_more_requests_yield_no_fewer_tokens_and_two_machines_twice_as_many() -> None:
    eight, sixteen = (asked("llama-3.1-70b", "rtx-4090", None, isl=64, osl=1024, concurrency=n) for n in (8, 16))
    assert speed(sixteen) >= speed(eight)
    load = {"isl": 32000, "osl": 2048, "max_batched_tokens": 8192}
    one = asked("llama-4-scout", "l40s", None, concurrency=16, **load)
    two = asked("llama-4-scout", "l40s:2", None, concurrency=32, replicas=2, **load)
    assert speed(two) == pytest.approx(2 * speed(one), rel=1e-9)
