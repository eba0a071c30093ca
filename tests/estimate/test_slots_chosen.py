"""Into how many slots llama.cpp's cache is cut where nobody says so."""

from __future__ import annotations

import trilemma as tl
from trilemma.estimate.estimate import Estimate


def asked(model: str, gpu: str, free_gib: float, **load: int) -> Estimate:
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
