"""Two small emulations that need no training: amax shared between tensor-parallel shards, and the rounding of MX scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from trilemma.precision.lab.casts import largest_value
from trilemma.precision.lab.recipes import LabRecipe
from trilemma.precision.lab.scaling import AmaxHistory, keep_in_blocks, keep_per_tensor, largest_magnitude
from trilemma.precision.signals import TensorSignals, tensor_signals

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedStep:
    """One step of a tensor that lies on several ranks: each rank's amax and scale, and what the casts kept of the whole."""

    amaxes: tuple[float, ...]
    scales: tuple[float, ...]
    signals: TensorSignals


def cast_shards(
    steps: Sequence[Sequence[Tensor]],
    *,
    shared_amax: bool,
    name: str = "fp8_e4m3",
    history: int = 1,
    history_rule: Literal["max", "most_recent"] = "most_recent",
    margin: int = 0,
) -> list[ShardedStep]:
    """Delayed scaling of a tensor of which every rank holds a shard, step after step; casts saturate.

    ``steps``: the shards of each step, one tensor a rank. ``shared_amax``: the largest magnitude of all ranks enters every
    history (Transformer Engine's ``reduce_amax`` over its ``amax_reduction_group``), else each rank knows its own alone.
    Defaults are Megatron-Core's: a history of one step, the most recent.
    """
    ranks = len(steps[0])
    histories = [AmaxHistory(length=history) for _ in range(ranks)]
    found = []
    for shards in steps:
        amaxes = tuple(largest_magnitude(shard) for shard in shards)
        scales = tuple(one.scale(largest_value(name), rule=history_rule, margin=margin) for one in histories)
        kept = [
            keep_per_tensor(shard, name, scale=scale, overflow="saturate")
            for shard, scale in zip(shards, scales, strict=True)
        ]
        limits = [torch.full_like(shard, float(one.limit)) for shard, one in zip(shards, kept, strict=True)]
        signals = tensor_signals(
            torch.cat([shard.flatten() for shard in shards]),
            torch.cat([one.values.flatten() for one in kept]),
            limit=torch.cat([limit.flatten() for limit in limits]),
        )
        found.append(ShardedStep(amaxes=amaxes, scales=scales, signals=signals))
        for one, amax in zip(histories, amaxes, strict=True):
            one.add(max(amaxes) if shared_amax else amax)
    return found


def moving_outlier(
    *, steps: int, tokens: int = 64, width: int = 64, gain: float = 100.0, seed: int = 0
) -> list[list[Tensor]]:
    """Shards of two sequence-parallel ranks: normal numbers, and one token ``gain`` times as large that changes ranks.

    Massive activations belong to single tokens; where the sequence is split over ranks, the rank that holds such a token
    changes from batch to batch.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for step in range(steps):
        shards = [torch.randn(tokens, width, generator=generator) for _ in range(2)]
        shards[step % 2][0] *= gain
        found.append(shards)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleBias:
    """What MX scales of one rule do to a gradient: ``kept`` is its projection on itself after the cast, 1 = unbiased."""

    rule: Literal["floor", "rceil"]
    kept: float
    signals: TensorSignals


def mx_scale_bias(gradient: Tensor, *, name: str = "fp8_e4m3") -> tuple[ScaleBias, ScaleBias]:
    """``gradient`` (rows, columns) under MX scales rounded down (FLOOR) and up (RCEIL), groups of 32 along columns.

    Elements in the top of a binade saturate under FLOOR, always towards zero; rounding to nearest has no such preference.
    """
    found = []
    rules: tuple[Literal["floor", "rceil"], ...] = ("floor", "rceil")
    for rule in rules:
        recipe = LabRecipe(name=rule, says="", forward=name, backward=name, scaling="mx", power_rule=rule)
        kept = keep_in_blocks(gradient, name, recipe, weight=False)
        share = float((kept.values.double() * gradient.double()).sum() / gradient.double().square().sum())
        found.append(ScaleBias(rule=rule, kept=share, signals=tensor_signals(gradient, kept.values, limit=kept.limit)))
    return found[0], found[1]


def loss_gradient(*, tokens: int, vocabulary: int = 64, seed: int = 0) -> Tensor:
    """Gradient of the mean cross-entropy for the logits of an untrained model, (tokens, vocabulary).

    (softmax - one-hot) / tokens: the entries of the right answers lie just below 1 / tokens, so that a power of two of
    tokens puts them into the top of a binade.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = 0.1 * torch.randn(tokens, vocabulary, generator=generator)
    answers = torch.randint(0, vocabulary, (tokens,), generator=generator)
    gradient = logits.softmax(-1)
    gradient[torch.arange(tokens), answers] -= 1
    return gradient / tokens
