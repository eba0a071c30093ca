"""What requests ask of the sampler, in a step's time: by engine, release and vocabulary."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.timing.sampling import sampled_logit_s, waits_for_tokens

LOAD = {"isl": 150, "osl": 600, "concurrency": 64}


def tpot_s(sampling: str, *, engine: str, model: str = "qwen3-14b", card: str = "h100-sxm") -> float:
    return float(tl.fit(model, card, engine=engine, sampling=sampling, **LOAD).speed.tpot_s.interval.value)


def test_a_sort_is_as_long_as_was_measured():
    # 64 rows of 131,072 words: 1.07 ms as a sort in PyTorch, 0.31 ms in Triton (vllm-project/vllm pull 40376)
    rows = 64 * 131_072
    old, new = (sampled_logit_s("filtered", engine="vllm", version=one, bytes_per_s=1e30) for one in ("0.11.1", None))
    assert rows * old == pytest.approx(1.07e-3, rel=0.1)
    assert rows * new == pytest.approx(0.31e-3, rel=0.1)


def test_a_request_that_samples_lengthens_every_step_of_its_batch():
    greedy, filtered, penalized = (tpot_s(kind, engine="vllm@0.13.0") for kind in ("greedy", "filtered", "penalized"))
    # 151,936 words for each of 64 rows, the scheduler of 0.13 in turn with the cards anyway
    assert filtered - greedy == pytest.approx(64 * 151_936 * 0.145e-9, rel=0.15)
    assert greedy < filtered < penalized
    sglang = tpot_s("filtered", engine="sglang") - tpot_s("greedy", engine="sglang")
    assert 0 < sglang < 0.5 * (filtered - greedy)  # FlashInfer sorts nothing


def test_penalties_keep_the_scheduler_of_vllm_from_working_ahead():
    assert waits_for_tokens("penalized", engine="vllm")
    assert not waits_for_tokens("filtered", engine="vllm")
    assert not waits_for_tokens("penalized", engine="sglang")
    filtered, penalized = (tpot_s(kind, engine="vllm") for kind in ("filtered", "penalized"))
    # 64 sequences of some 25 to 40 us that the host no longer hides
    assert 64 * 10e-6 < penalized - filtered < 64 * 60e-6


def test_a_word_that_is_no_way_of_sampling_is_refused():
    with pytest.raises(InputError, match="sampling"):
        tl.fit("qwen3-14b", "h100-sxm", sampling="beam")
