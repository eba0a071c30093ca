"""What a cast, a gradient and an update lost: the numbers that foretell trouble, under Transformer Engine's names.

`tensor_signals` follows the debug feature LogFp8TensorStats of Transformer Engine 2.x (file
``transformer_engine/debug/features/utils/stats_computation.py``): ``underflows%`` counts values that were not zero and
became zero, ``overflows%`` values beyond the largest number times the inverse scale, both as a share of all elements;
``mse`` is the mean squared difference. Torch is imported when a function runs, so that reading results needs none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from trilemma.columns import column

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "torch.Tensor"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSignals:
    """One tensor beside what a cast kept of it.

    ``sqnr_db`` is 10 log10(sum of squares / sum of squared differences): infinite where nothing was lost, minus infinity
    where the cast made NaN or infinity. ``amax`` is the largest magnitude before the cast. ``non_finite_percent`` counts
    NaN and infinity after the cast. Documents name them as Transformer Engine's logs do.
    """

    elements: int = field(metadata=column(hidden=True))
    amax: float = field(metadata=column(finite=True))
    mse: float = field(metadata=column(finite=True))
    sqnr_db: float = field(metadata=column(finite=True))
    underflows_percent: float = field(metadata=column("underflows%", finite=True))
    overflows_percent: float = field(metadata=column("overflows%", finite=True))
    non_finite_percent: float = field(metadata=column("non_finite%", finite=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientSignals:
    """A whole gradient beside a reference for the same weights and batch.

    ``norm_ratio`` is norm / reference_norm, ``cosine`` that of the angle between them; NaN where either is not finite or
    zero.
    """

    norm: float = field(metadata=column(finite=True))
    reference_norm: float = field(metadata=column(finite=True))
    norm_ratio: float = field(metadata=column(finite=True))
    cosine: float = field(metadata=column(finite=True))


def tensor_signals(values: Tensor, kept: Tensor, *, limit: Any = None) -> TensorSignals:
    """What of ``values`` a cast to low precision kept.

    ``kept``: the values after the cast and back, same shape, any float type. ``limit``: the largest magnitude that the
    cast could hold (maximum of the format / scale), a number or a tensor that broadcasts against ``values`` (block
    scales); without it only non-finite results of finite values count as overflows.
    """
    import torch

    before, after = values.detach().float(), kept.detach().float()
    elements = before.numel()
    if elements == 0:
        return TensorSignals(
            elements=0,
            amax=0.0,
            mse=0.0,
            sqnr_db=math.inf,
            underflows_percent=0.0,
            overflows_percent=0.0,
            non_finite_percent=0.0,
        )
    size = before.abs()
    amax = float(size.max())
    # Element-wise tests cost more than all else together on a CPU: they are left out where one figure says that nothing is there.
    if math.isfinite(amax) and math.isfinite(float(after.sum())):
        within = limit is None or (isinstance(limit, float) and amax <= limit)
        overflows = 0 if within else int(torch.count_nonzero(size.sub_(limit).clamp_min_(0)))
        non_finite = 0
    else:
        finite = torch.isfinite(after)
        over = (size > limit) if limit is not None else (~finite & torch.isfinite(before))
        overflows, non_finite = int(torch.count_nonzero(over)), elements - int(torch.count_nonzero(finite))
    lost = int(torch.count_nonzero(before) - torch.count_nonzero(after))
    signal, noise = float(_norm(before)), float(_norm(torch.sub(before, after, out=size)))
    return TensorSignals(
        elements=elements,
        amax=amax,
        mse=noise * noise / elements,
        sqnr_db=_decibels(signal, noise),
        underflows_percent=100.0 * lost / elements,
        overflows_percent=100.0 * overflows / elements,
        non_finite_percent=100.0 * non_finite / elements,
    )


def gradient_signals(gradients: Iterable[Tensor], reference: Iterable[Tensor]) -> GradientSignals:
    """``gradients`` of all parameters beside ``reference``, tensor by tensor in the same order and shapes."""
    import torch

    squares, reference_squares, products = [], [], []
    for one, other in zip(gradients, reference, strict=True):
        mine, theirs = (part.detach().flatten().to(_wide(part)) for part in (one, other))
        squares.append(torch.dot(mine, mine))
        reference_squares.append(torch.dot(theirs, theirs))
        products.append(torch.dot(mine, theirs))
    sums = torch.stack([torch.stack(part).sum() for part in (squares, reference_squares, products)]).tolist()
    norm, reference_norm = math.sqrt(sums[0]), math.sqrt(sums[1])
    usable = math.isfinite(sums[2]) and 0 < norm < math.inf and 0 < reference_norm < math.inf
    return GradientSignals(
        norm=norm,
        reference_norm=reference_norm,
        norm_ratio=norm / reference_norm if usable else math.nan,
        cosine=sums[2] / (norm * reference_norm) if usable else math.nan,
    )


def frozen_update_percent(
    before: Iterable[Tensor], after: Iterable[Tensor], *, asked: Iterable[Tensor] | None = None
) -> float:
    """Share of stored weights that an optimizer step left exactly as they were, in percent.

    ``before`` and ``after``: stored values, tensor by tensor. ``asked``: what moved them (gradient or update), same
    shapes; weights for which it is zero are left out, since standing still is right for them. 0 where nothing is asked.
    """
    import torch

    same, all_ = [], []
    if asked is None:
        for old, new in zip(before, after, strict=True):
            same.append(torch.count_nonzero(old == new))
            all_.append(old.numel())
        return 100.0 * int(torch.stack(same).sum()) / max(1, sum(all_)) if same else 0.0
    moved = []
    for old, new, wish in zip(before, after, asked, strict=True):
        wanted = wish != 0
        same.append(torch.count_nonzero((old == new) & wanted))
        moved.append(torch.count_nonzero(wanted))
    if not same:
        return 0.0
    still, wanted_count = torch.stack([torch.stack(same).sum(), torch.stack(moved).sum()]).tolist()
    return 100.0 * still / max(1, wanted_count)


def finite_or_none(value: float) -> float | None:
    """``value`` for JSON, which knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _norm(values: Tensor) -> Tensor:
    import torch

    return torch.linalg.vector_norm(values, dtype=_wide(values))


def _wide(values: Tensor) -> Any:
    """The type to sum in: squares of gradients fall below the range of FP32, but Apple's GPUs have no FP64."""
    import torch

    return torch.float32 if values.device.type == "mps" else torch.float64


def _decibels(signal: float, noise: float) -> float:
    if not math.isfinite(noise):
        return -math.inf
    if noise == 0:
        return math.inf
    return 20 * math.log10(signal / noise) if signal > 0 else -math.inf
