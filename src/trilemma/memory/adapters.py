"""Tensors of adapters, and what they make a frozen layer keep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.memory.saved_tensors import Cut, SavedTensor
from trilemma.models.architecture import Model, Shard, Tensor
from trilemma.workloads import TrainingWorkload


def is_target(tensor: Tensor, workload: TrainingWorkload) -> bool:
    """Whether adapters stand on ``tensor``: named, or any linear layer of the decoder but stacked experts and the router.

    PEFT's "all-linear" reaches modules that are linear layers; stacks of experts are plain parameters.
    """
    if not workload.targets:
        return is_linear(tensor) and not tensor.experts
    return any(is_target_name(tensor, one) for one in workload.targets)


def is_target_name(tensor: Tensor, one: str) -> bool:
    """Whether ``one`` target, a role or a name of a module, means ``tensor``."""
    named = tensor.role == one or tensor.role.startswith(f"{one}.") or f".{one}." in f".{tensor.name}."
    return named and is_linear(tensor)


def is_linear(tensor: Tensor) -> bool:
    return tensor.part == "layers" and tensor.quantizable and len(tensor.shape) >= 2


def targets(model: Model, workload: TrainingWorkload) -> tuple[Tensor, ...]:
    """Tensors that get an adapter. Raises `InputError` where the targets name nothing."""
    found = tuple(tensor for tensor in model.tensors if is_target(tensor, workload))
    if not found:
        roles = sorted({tensor.role for tensor in model.of_part("layers") if tensor.quantizable})
        raise InputError(f"targets {shorten(', '.join(workload.targets))!r} name no layer; use {', '.join(roles)}")
    return found


def adapter_tensors(model: Model, workload: TrainingWorkload) -> tuple[Tensor, ...]:
    """A (rank × in) and B (out × rank) for every target (Hu et al. 2021), DoRA's magnitude (out) beside (Liu et al. 2024).

    Of a layer cut along its columns B is cut and A whole; of one cut along its rows the other way round.
    """
    found: list[Tensor] = []
    fmt = catalogue.get("fp32")
    for tensor in targets(model, workload):
        found += low_rank(tensor, rank=workload.rank, stored=fmt)
        if workload.method == "dora":
            cut: Shard = "column" if tensor.shard == "column" else "none"
            found.append(_piece(tensor, "magnitude", tensor.shape[:-1], cut, fmt))
    return tuple(found)


def low_rank(tensor: Tensor, *, rank: int, stored: Format, stack: tuple[int, ...] = ()) -> list[Tensor]:
    """A (rank × in) and B (out × rank) beside ``tensor``, each ``stack`` times over; cut as `adapter_tensors` says."""
    out, width = tensor.shape[-2:]
    stack = (*stack, *tensor.shape[:-2])
    a_cut: Shard = "row" if tensor.shard == "row" else "none"
    b_cut: Shard = "column" if tensor.shard == "column" else "none"
    return [
        _piece(tensor, "lora_A", (*stack, rank, width), a_cut, stored),
        _piece(tensor, "lora_B", (*stack, out, rank), b_cut, stored),
    ]


def _piece(tensor: Tensor, name: str, shape: tuple[int, ...], cut: Shard, stored: Format) -> Tensor:
    return Tensor(
        name=f"{tensor.name}.{name}",
        role="adapter",
        shape=shape,
        format=stored,
        part=tensor.part,
        layer=tensor.layer,
        shard=cut,
        shard_units=tensor.shard_units if cut != "none" else 1,
        experts=tensor.experts,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterMethod:
    """What a method of PEFT keeps on each target: counts of ``inputs``, ``outputs`` (a token each) and of products of the rank,
    and of matrices made anew, as large as the weight or as the square of its input, in ``bits``. ``prompt``: tokens before the
    text."""

    words: tuple[str, ...]
    inputs: int = 0
    outputs: int = 0
    ranks: int = 0
    weights: int = 0
    squares: int = 0
    bits: float = 32
    prompt: bool = False


@cache
def adapter_methods() -> tuple[AdapterMethod, ...]:
    """Every method of ``data/adapter_methods.toml``."""
    rows = read_data("adapter_methods.toml")["method"]
    return tuple(AdapterMethod(**{**row, "words": tuple(row["words"])}) for row in rows)


def find_adapter_method(name: str) -> AdapterMethod | None:
    """The method whose words all occur in ``name``, that of most words; None for one that is not known."""
    said = set(re.split(r"[^a-z0-9_]+", name[:500].lower()))
    found = [one for one in adapter_methods() if said.issuperset(one.words)]
    return max(found, key=lambda one: len(one.words)) if found else None


def _method_of(workload: TrainingWorkload) -> AdapterMethod:
    name = workload.adapter or "lora"
    found = find_adapter_method(name)
    if found is None:
        known = ", ".join(" ".join(one.words) for one in adapter_methods())
        raise InputError(f"adapter {shorten(name)!r} is not known; use one of {known}")
    return found


def adapter_saved(
    layer: Sequence[Tensor], workload: TrainingWorkload, *, casts: bool, bits: float | None = None
) -> tuple[SavedTensor, ...]:
    """What adapters of one layer keep: a copy of the input of each where ``casts`` (in the format of activations: autocast
    turns an FP32 copy back before the product, which keeps what it multiplies; in ``bits`` without autocast), and the product
    of A. DoRA keeps the output
    of the frozen layer beside (it multiplies it by the magnitude). Other methods keep what `adapter_methods` says.

    Llama-3-8B, every linear layer: 54.1 bytes per token and hidden value with copies, 45.5 without (saved-tensor hooks).
    """
    method = _method_of(workload)
    return tuple(
        saved
        for tensor in layer
        if is_target(tensor, workload)
        for saved in _saved_on(tensor, method, workload, casts=casts, bits=bits)
    )


def _saved_on(
    tensor: Tensor, method: AdapterMethod, workload: TrainingWorkload, *, casts: bool, bits: float | None
) -> Iterator[SavedTensor]:
    cut: Cut = "units" if tensor.shard == "row" else "sequence"
    units = tensor.shard_units if tensor.shard == "row" else 1
    out, width = tensor.shape[-2:]
    if casts and method.inputs:
        yield SavedTensor(name=f"{tensor.role}.cast", width=method.inputs * width, bits=bits, cut=cut, units=units)
    if method.ranks:
        yield SavedTensor(name=f"{tensor.role}.lora_A", width=method.ranks * workload.rank, bits=bits)
    if method.outputs:
        yield SavedTensor(name=f"{tensor.role}.adapter_output", width=method.outputs * out, bits=bits)
    made = method.weights * out * width + method.squares * width * width
    if made:
        yield SavedTensor(name=f"{tensor.role}.made", width=made, bits=method.bits, cut="whole", per="layer")
    if workload.method == "dora":
        yield SavedTensor(name=f"{tensor.role}.base_output", width=out)
