"""Which layouts an engine accepts, for one plan and for tables."""

from __future__ import annotations

import numpy as np
import pytest

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
