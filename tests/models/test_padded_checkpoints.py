"""Quantised checkpoints whose publisher padded the feed-forward so that ranks hold whole groups of 128."""

from __future__ import annotations

import pytest

import trilemma as tl


@pytest.mark.parametrize(
    "model",
    ["Qwen/Qwen2.5-72B-Instruct-AWQ", "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-VL-72B-Instruct-AWQ"],
)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_72b_of_qwen_is_cut_by_two_to_eight(model: str, tp: int) -> None:
    """29,568 columns cut by two are no whole groups: Qwen's AWQ and GPTQ hold 29,696 (qwen.readthedocs.io, quantization/gptq)."""
    answer = tl.check(f"vllm serve {model} --tensor-parallel-size {tp}", gpu=f"a100-sxm4-80gb:{tp}")
    assert answer.fits
    shapes = {tensor.shape for tensor in answer.question.model.tensors if tensor.role == "ffn.down"}
    assert shapes == {(8192, 29696)}


def test_a_checkpoint_that_is_not_padded_is_still_refused() -> None:
    with pytest.raises(tl.InputError, match="inside blocks of 128"):
        tl.fit("qwen2.5-72b", "a100-sxm4-80gb:2", precision="awq")
