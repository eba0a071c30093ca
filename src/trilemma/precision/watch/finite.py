"""Is every number finite? Asked in every pass and step, hence by the cheapest test that cannot miss one.

A sum of numbers is not finite when one of them is not, and reads each number once; on a CPU an element-wise test or a largest
magnitude takes forty times as long. A sum of finite numbers may overflow, so what it suspects is looked at one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch


def is_bad(tensor: torch.Tensor, *, minus_infinity_is_fine: bool = False) -> bool:
    """Whether a floating tensor holds NaN or an infinity."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    held = stored_here(tensor)
    if math.isfinite(float(_sum(held))):
        return False
    if held.element_size() == 1:
        held = held.float()  # FP8 has no element-wise tests
    if minus_infinity_is_fine:
        return bool(torch.isnan(held).any() or torch.isposinf(held).any())
    return not bool(torch.isfinite(held).all())


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all floating tensors are finite, with one transfer from a GPU."""
    held = [stored_here(one) for one in tensors if one.numel()]
    if not held:
        return True
    if any(one.device.type == "cpu" for one in held):
        return not any(is_bad(one) for one in held)
    # One kernel for many tensors; the largest magnitude is finite when all are.
    norms = torch._foreach_norm(held, math.inf)
    return bool(torch.isfinite(torch.stack([norm.to(norms[0].device).float() for norm in norms])).all())


def stored_here(tensor: torch.Tensor) -> torch.Tensor:
    """The dense numbers that this process holds of a tensor that may be sharded or sparse."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor


def tensors_in(value: Any, *, depth: int = 4) -> Iterator[torch.Tensor]:
    """Every tensor of nested tuples, lists and mappings (model outputs among them)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        yield from _each(value.values(), depth)
    elif depth and isinstance(value, list | tuple):
        yield from _each(value, depth)


def _each(values: Iterable[Any], depth: int) -> Iterator[torch.Tensor]:
    for value in values:
        yield from tensors_in(value, depth=depth - 1)


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    # The sum of an FP16 tensor leaves the range of FP16 soon, and FP8 has no sum.
    return tensor.detach().sum() if tensor.dtype in _SUMMED_AS_IS else tensor.detach().sum(dtype=torch.float32)


_SUMMED_AS_IS = (torch.float64, torch.float32, torch.bfloat16)
