"""Which layouts an engine accepts, for one plan and for tables."""

from __future__ import annotations

import numpy as np
import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.estimate.layouts import check_layout, violations
from trilemma.models.resolve import load_model
from trilemma.plans import Layout

LLAMA = load_model("meta-llama/Llama-3.1-70B")


@pytest.mark.slow
def test_one_plan_and_a_table_obey_the_same_rules() -> None:
    degrees = np.arange(1, 65)
    table = np.zeros(len(degrees), dtype=bool)
    for broken in violations(LLAMA, Layout(tp=degrees)).values():
        table |= np.broadcast_to(broken, table.shape)
    for tp, broken in zip(degrees, table, strict=True):
        if broken:
            with pytest.raises(InputError, match="use 1, 2, 4, 8, 16, 32 or 64"):
                check_layout(LLAMA, Layout(tp=int(tp)))
        else:
            check_layout(LLAMA, Layout(tp=int(tp)))
    assert set(degrees[~table]) == {1, 2, 4, 8, 16, 32, 64}


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(pp=81), "use at most 80"),
        (Layout(tp=2, ep=2), "without experts"),
        (Layout(tp=8, dcp=2), "`dcp` 2"),
    ],
)
def test_other_rules_name_value_and_remedy(layout: Layout, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_layout(LLAMA, layout)


def test_decode_context_parallel_divides_the_ranks_that_hold_copies() -> None:
    check_layout(LLAMA, Layout(tp=16, dcp=2))
    check_layout(load_model("deepseek-ai/DeepSeek-V3"), Layout(tp=8, dcp=8))


def test_more_expert_ranks_than_experts() -> None:
    with pytest.raises(InputError, match="8 experts"):
        check_layout(load_model("mistralai/Mixtral-8x7B-v0.1"), Layout(tp=8, dp=2, ep=16))


def test_columns_are_not_cut_inside_blocks_of_scales() -> None:
    """Qwen3-235B-A22B-FP8: 1536 columns over 8 ranks are 192, no multiple of 128; experts spread whole are fine."""
    model = load_model("Qwen/Qwen3-235B-A22B-FP8")
    with pytest.raises(InputError, match=r"use 1, 2 or 4, or spread experts whole \(--ep\)"):
        check_layout(model, Layout(tp=8))
    check_layout(model, Layout(tp=4))
    check_layout(model, Layout(tp=8, ep=8))
    check_layout(load_model("deepseek-ai/DeepSeek-V3"), Layout(tp=16))


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve Qwen/Qwen3-8B --max-model-len 131072", True),
        (
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 sglang serve --model-path Qwen/Qwen3-8B --context-length 131072",
            True,
        ),
        ("llama-server -m Qwen3-8B-Q4_K_M.gguf -c 131072", True),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 131072", False),
        ("sglang serve --model-path Qwen/Qwen3-8B --context-length 131072", False),
    ],
)
def test_contexts_beyond_the_positions_are_refused_where_the_engine_refuses_them(words: str, fits: bool) -> None:
    """vllm/config/model.py and sglang/srt/configs/model_config.py stop but for a variable; llama-server caps its slots."""
    if fits:
        assert tl.check(words, gpu="h100-sxm").fits
        return
    with pytest.raises(InputError, match="more than the 40960 positions"):
        tl.check(words, gpu="h100-sxm")


@pytest.mark.parametrize(
    "words",
    [
        """vllm serve unsloth/Qwen3.6-27B-NVFP4 --max-model-len 1048576 --max-num-seqs 1 --kv-cache-dtype nvfp4 --hf-overrides
        '{"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}}'""",
        """sglang serve --model-path Qwen/Qwen3-8B --context-length 131072 --json-model-override-args
        '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'""",
    ],
)
def test_positions_are_stretched_in_sections_and_by_every_engines_own_word(words: str) -> None:
    """vllm-project/vllm issue 49011 starts with 1,048,576 tokens; docs of Qwen3 give SGLang's form."""
    assert tl.check(" ".join(words.split()), gpu="rtx-pro-6000-blackwell").fits


def test_llama_server_says_where_it_caps_a_slot() -> None:
    found = tl.check("llama-server -m Qwen3-8B-Q4_K_M.gguf -c 131072", gpu="h100-sxm").to_dict()
    assert any(one["code"] == "context-beyond-model" and "40,960" in one["message"] for one in found["warnings"])
    with pytest.raises(InputError, match="more than the 40960 positions"):
        tl.fit("qwen3-8b", gpu="h100-sxm", engine="llama.cpp", isl=100_000, osl=100)


@pytest.mark.parametrize("length", [{"isl": 200_000}, {"osl": 200_000}])
def test_one_length_alone_is_held_to_the_positions_too(length: dict[str, int]) -> None:
    """Prompts of 200,000 tokens were answered for requests of 40,960 where nothing said how long outputs are."""
    with pytest.raises(InputError, match="200000 tokens a request are more than the 40960 positions"):
        tl.fit("qwen3-8b", gpu="h100-sxm", **length)
