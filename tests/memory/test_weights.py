"""Weights of one rank: shares, padding, pipeline stages and copies."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.memory.stages import stage_bounds, stage_sizes
from trilemma.memory.weights import RankWeights, WeightTable, rank_weights, shard_share
from trilemma.models.architecture import Model
from trilemma.models.resolve import load_model


def _rank(model: Model, *, tp: int = 1, pp: int = 1, stage: str = "first", ep: int = 1) -> RankWeights:
    start, stop = stage_bounds(len(model.layers), pp, stage)
    return rank_weights(
        WeightTable.of(model), start=start, stop=stop, first=start == 0, last=stop == len(model.layers), tp=tp, ep=ep
    )


@pytest.mark.parametrize(
    ("shard", "units", "experts", "tp", "ep", "share"),
    [
        ("none", 1, 0, 8, 1, 1.0),
        ("column", 8, 0, 4, 1, 1 / 4),
        ("column", 8, 0, 16, 1, 1 / 8),  # KV heads beyond which ranks hold copies
        ("row", 64, 0, 6, 1, 11 / 64),  # heads are never split
        ("vocab", 128256, 0, 8, 1, 1 / 8),
        ("vocab", 50257, 0, 2, 1, 25152 / 50257),  # padded to 50,304 rows
        ("column", 1408, 64, 2, 8, 1 / 8),  # whole experts on eight ranks
        ("column", 1408, 60, 2, 8, 8 / 60),
        ("row", 1408, 64, 2, 1, 1 / 2),
    ],
)
def test_share_of_a_rank(shard: str, units: int, experts: int, tp: int, ep: int, share: float) -> None:
    assert shard_share(shard=shard, units=units, experts=experts, tp=tp, ep=ep) == pytest.approx(share)  # type: ignore[arg-type]


def test_share_of_padded_experts() -> None:
    """gpt-oss: 2880 columns on two ranks are 1440 each, padded to 1536."""
    assert shard_share(shard="column", units=2880, experts=32, tp=2, multiple=128) == pytest.approx(1536 / 2880)
    plain, padded = (
        WeightTable.of(load_model("gpt-oss-20b"), expert_padding=rule) for rule in ({}, {"mxfp4": (128, 256)})
    )
    whole = {"start": 0, "stop": 24, "first": True, "last": True, "tp": 1}
    assert rank_weights(padded, **whole).text > 1.05 * rank_weights(plain, **whole).text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [
        (32, 4, [8, 8, 8, 8]),
        (61, 4, [15, 16, 15, 15]),
        (62, 4, [15, 16, 16, 15]),
        (10, 4, [2, 3, 3, 2]),
        (7, 2, [4, 3]),
    ],
)
def test_layers_left_over_go_to_the_middle(layers: int, pp: int, sizes: list[int]) -> None:
    """vllm/distributed/utils.py, get_pp_indices: from the second last stage backwards, the last gets none."""
    assert sorted(stage_sizes(layers, pp)) == sorted(sizes)
    assert stage_sizes(layers, pp)[-1] == min(sizes)
    assert sum(stage_sizes(layers, pp)) == layers


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="--pp 9 does not fit 8 layers"):
        stage_sizes(8, 9)


def test_stage_bounds_of_a_table() -> None:
    start, stop = stage_bounds(62, np.array([1, 2, 4]), "last")
    assert (start.tolist(), stop.tolist()) == ([0, 31, 47], [62, 62, 62])
    assert [int(value) for value in stage_bounds(62, 4, "middle")] == [15, 31]


def test_one_rank_holds_every_tensor_once() -> None:
    for name in ("llama-3.1-8b", "gemma-3-4b", "deepseek-v2-lite"):
        model = load_model(name)
        found = _rank(model)
        total = sum(tensor.bytes for tensor in model.tensors)
        assert found.text + found.vision + found.mtp == pytest.approx(total, rel=2e-3)


def test_tied_embeddings_count_on_both_ends_of_a_pipeline() -> None:
    model = load_model("gemma-2-2b")
    matrix = 256000 * 2304 * 2
    whole = _rank(model).text
    first, last = (_rank(model, pp=2, stage=stage).text for stage in ("first", "last"))
    assert first + last == pytest.approx(whole + matrix, rel=1e-3)


def test_stages_hold_the_whole_model_between_them() -> None:
    model = load_model("llama-3.1-70b")
    parts = [_rank(model, pp=4, stage=stage).text for stage in ("first", "middle", "last")]
    assert parts[0] + 2 * parts[1] + parts[2] == pytest.approx(_rank(model).text, rel=1e-9)


def test_dense_models_split_evenly() -> None:
    """A plain 1/TP: Llama-3.1-8B prints 14.99, 7.51 and 3.77 GiB (llm-d-planner pull request 205)."""
    model = load_model("llama-3.1-8b")
    for tp in (2, 4, 8):
        assert _rank(model, tp=tp).text * tp == pytest.approx(_rank(model).text, rel=2e-3)
