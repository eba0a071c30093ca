"""Which plans are looked at: layouts and precisions."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.search import Constraints
from trilemma.search.precisions import kv_dtypes, precisions
from trilemma.search.space import layouts


def rows(space):
    table = space.layout
    return set(zip(table.tp.tolist(), table.pp.tolist(), table.dp.tolist(), table.ep.tolist(), strict=True))


def test_every_layout_of_a_dense_model():
    space = layouts(load_model("llama-3.1-70b"), gpus=8, fixed=Constraints())
    assert rows(space) == {
        (tp, pp, 8 // (tp * pp), 1) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp <= 8
    }  # fmt: skip
    assert space.searched == 10
    assert not space.rejected


def test_heads_and_layers_bound_the_layouts_and_the_reason_is_counted():
    space = layouts(load_model("llama-3.1-70b"), gpus=12, fixed=Constraints())
    assert all(tp in (1, 2, 4) for tp, *_ in rows(space))
    assert space.rejected["tp does not divide the 64 attention heads"] == space.searched - space.legal
    deep = layouts(load_model("llama-3.1-8b"), gpus=64, fixed=Constraints(tp=1))
    assert any("more pipeline stages than the 32 layers" in why for why in deep.rejected)


def test_experts_are_split_or_spread_over_all_ranks():
    spread = rows(layouts(load_model("mixtral-8x7b"), gpus=4, fixed=Constraints()))
    assert (2, 1, 2, 1) in spread
    assert (2, 1, 2, 4) in spread
    assert all(ep in (1, tp * dp) for tp, _, dp, ep in spread)
    always, never = (
        rows(layouts(load_model("mixtral-8x7b"), gpus=4, fixed=Constraints(expert_parallel=whole)))
        for whole in (True, False)
    )
    assert all(ep == tp * dp for tp, _, dp, ep in always)
    assert all(ep == 1 for *_, ep in never)


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        (Constraints(tp=3), r"`tp` 3 does not divide the 8 GPUs.*use one of 1, 2, 4, 8"),
        (Constraints(tp=8, pp=2), r"`tp` 8 x `pp` 2 cannot be laid out on the 8 GPUs"),
    ],
)
def test_degrees_that_cannot_be(fixed, words):
    with pytest.raises(InputError, match=words):
        layouts(load_model("llama-3.1-70b"), gpus=8, fixed=fixed)


@pytest.mark.parametrize(
    ("model", "gpu", "names"),
    [
        ("llama-3.1-70b", "h200-sxm", ["as published", "fp8", "awq"]),
        ("llama-3.1-70b", "b200-sxm", ["as published", "fp8", "nvfp4", "awq"]),
        ("llama-3.1-70b", "a100-sxm4-80gb", ["as published", "w8a8", "awq"]),
        ("llama-3.1-70b", "mi355x", ["as published", "fp8", "mxfp4", "awq"]),
        ("deepseek-r1", "h200-sxm", ["as published", "awq"]),
        ("deepseek-r1", "b200-sxm", ["as published", "nvfp4"]),
        ("gpt-oss-120b", "b200-sxm", ["as published"]),
    ],
)
def test_precisions_that_suit_the_card(model, gpu, names):
    assert [one.name for one in precisions(load_model(model), find(gpu), None)] == names


def test_only_fp8_runs_from_a_16_bit_checkpoint():
    by_name = {one.name: one for one in precisions(load_model("meta-llama/Llama-3.1-70B"), find("h200-sxm"), None)}
    assert by_name["fp8"].on_load == "fp8"
    assert by_name["fp8"].served_as == "meta-llama/Llama-3.1-70B"
    assert by_name["awq"].served_as == "./Llama-3.1-70B-awq"
    assert by_name["awq"].checkpoint == "a checkpoint converted to awq"
    assert by_name["as published"].quality == "unchanged"


@pytest.mark.parametrize(("engine", "loads"), [("vllm", "fp8"), ("sglang", "fp8"), ("tensorrt-llm", None)])
def test_only_engines_that_quantise_while_loading_are_asked_to(engine, loads):
    """trtllm-serve has no flag for it: its plan said FP8 and its command served 16 bits."""
    (one,) = precisions(load_model("qwen3-32b"), find("h100-sxm"), ["fp8"], engine=engine)
    assert one.on_load == loads
    assert one.served_as == ("Qwen/Qwen3-32B" if loads else "Qwen/Qwen3-32B-FP8")


def test_asking_for_what_the_checkpoint_is_changes_nothing():
    for word in ("as-is", "bf16"):
        (one,) = precisions(load_model("llama-3.1-70b"), find("h200-sxm"), [word])
        assert one.name == "as published"


def test_fp8_caches_where_the_card_has_fp8():
    model = load_model("llama-3.1-70b")
    assert kv_dtypes(model, find("h200-sxm"), None) == ["auto", "fp8"]
    assert kv_dtypes(model, find("a100-sxm4-80gb"), None) == ["auto"]
    assert kv_dtypes(model, find("a100-sxm4-80gb"), ["fp8"]) == ["fp8"]


def test_layout_tables_hold_whole_numbers():
    table = layouts(load_model("llama-3.1-70b"), gpus=8, fixed=Constraints()).layout
    assert all(np.issubdtype(np.asarray(getattr(table, name)).dtype, np.integer) for name in ("tp", "pp", "dp", "ep"))
