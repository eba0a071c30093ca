"""Engines whose cache is cut into slots get one for each request of the load that is asked about."""

from __future__ import annotations

import trilemma as tl


def test_llama_cpp_gets_a_slot_for_each_reader() -> None:
    said = tl.fit("qwen3-30b-a3b", "h200-sxm", engine="llama.cpp", precision="Q4_K_M", isl=128, osl=256, concurrency=4)
    assert said.question.plan.pool.options.max_seqs == 4
    assert "--parallel 4" in said.command
    assert said.speed.batch == 4


def test_one_reader_and_stated_slots_stay_as_they_are() -> None:
    options = {"engine": "llama.cpp", "precision": "Q4_K_M", "isl": 128, "osl": 256}
    assert tl.fit("qwen3-8b", "l40s", concurrency=1, **options).question.plan.pool.options.max_seqs is None
    assert tl.fit("qwen3-8b", "l40s", concurrency=8, max_seqs=2, **options).question.plan.pool.options.max_seqs == 2


def test_slots_never_push_layers_off_the_card() -> None:
    options = {"engine": "llama.cpp", "precision": "Q4_K_M", "isl": 8000, "osl": 256}
    alone, many = (tl.fit("llama-3.1-8b", "rtx-4060", concurrency=load, **options) for load in (1, 16))
    assert many.fits
    assert many.memory.ledger["weights"].bytes >= alone.memory.ledger["weights"].bytes


def test_longer_prompts_are_never_sooner() -> None:
    firsts = [
        tl.fit("qwen3-30b-a3b", "h200-sxm:2", engine="llama.cpp", precision="Q4_K_M", isl=isl, osl=2, concurrency=4)
        .speed.ttft_s.interval.value
        for isl in (64, 96, 128, 256)
    ]  # fmt: skip
    assert firsts == sorted(firsts)


def test_more_cards_never_mean_fewer_slots() -> None:
    options = {"engine": "llama.cpp", "precision": "Q4_K_M", "isl": 4096, "osl": 1024, "concurrency": 128}
    one, two = (tl.fit("gemma-3-27b", f"h200-sxm:{gpus}", **options).cache.tokens.value for gpus in (1, 2))
    assert two >= one
