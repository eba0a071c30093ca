"""Which kernels one decode step launches, with their shapes on one rank: the question that a kernel table can answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trilemma.formats.computing import kernel_name
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import ExpertFfn, Model, Tensor
from trilemma.models.attention import Mixer
from trilemma.plans import Layout
from trilemma.quantities import ceil_div
from trilemma.timing.operators import MultiplyingUnits, computed_formats

_HIDDEN_BYTES = 2
#: Exponent of the power law by which tables of mixtures skew rows over experts; serving traces lie near it.
_SKEW = 1.01


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCall:
    """``count`` launches of one kernel in a step, ``shapes`` by the names of its formula's arguments.

    ``line`` is the line of a pass to which it belongs, ``what`` the tensors or layers in words; ``head_dim`` and
    ``windowed`` as `kernel_coefficients` asks for them.
    """

    line: str
    what: str
    kernel: str
    dtype: str
    count: int
    shapes: Mapping[str, float]
    head_dim: int | None = None
    windowed: bool = False


def step_kernels(
    model: Model, accelerator: Accelerator, layout: Layout, *, batch: float, context: float, kv_format: Format
) -> tuple[KernelCall, ...]:
    """The kernels of one decode step on one rank: ``batch`` sequences of one attention replica at ``context`` tokens each.

    Matrix products of a layer that read the same input are one product, as engines fuse them. Norms, activations, sampling
    and layers of kinds that no table has are not among them.
    """
    tp, pp, dp, ep = (int(np.asarray(degree)) for degree in (layout.tp, layout.pp, layout.dp, layout.ep))
    rows = max(batch / pp, 1.0)
    units = MultiplyingUnits(dict(computed_formats(model, accelerator)))
    calls = [
        *_products((t for t in model.of_part("layers") if not t.experts and len(t.shape) >= 2), units, tp, rows),
        *_attention(model.mixers, tp, rows, context, kv_format),
        *_experts(model, units, rows, tp=tp, dp=dp, ep=ep),
        *_joins(model, tp, dp, rows),
        *_head(model, units, tp, rows),
    ]
    return tuple(calls)


def _products(tensors: Iterable[Tensor], units: MultiplyingUnits, tp: int, rows: float) -> Iterator[KernelCall]:
    fused: dict[tuple[object, ...], list[Tensor]] = {}
    for tensor in tensors:
        alone = tensor.name if tensor.shard not in ("column", "none") else ""
        part = tensor.role.partition(".")[0]
        key = (tensor.layer, part, tensor.shape[-1], tensor.shard, tensor.format.name, alone)
        fused.setdefault(key, []).append(tensor)
    counts: dict[tuple[str, str, float, float], int] = {}
    for members in fused.values():
        first = members[0]
        what = " + ".join(dict.fromkeys(tensor.role for tensor in members))
        dtype = kernel_name(first.format, units.of(first.format))
        columns = float(sum(_cut(tensor, tp, ("column", "vocab")) * _outputs(tensor) for tensor in members))
        depth = first.shape[-1] * _cut(first, tp, ("row",))
        alike = (what, dtype, columns, depth)
        counts[alike] = counts.get(alike, 0) + 1
    for (what, dtype, columns, depth), count in counts.items():
        line = "lm_head" if what in ("head", "embedding") else "dense"
        shapes = {"m": rows, "n": columns, "k": depth}
        yield KernelCall(line=line, what=what, kernel="gemm", dtype=dtype, count=count, shapes=shapes)


def _outputs(tensor: Tensor) -> int:
    return tensor.elements // tensor.shape[-1]


def _cut(tensor: Tensor, tp: int, shards: tuple[str, ...]) -> float:
    """The share of a tensor's width that the fullest rank holds where it is cut that way."""
    if tensor.shard not in shards:
        return 1.0
    pieces = max(tensor.shard_units, 1) if tensor.shard != "vocab" else tp
    return float(ceil_div(pieces, tp) / pieces)


def _head(model: Model, units: MultiplyingUnits, tp: int, rows: float) -> Iterator[KernelCall]:
    tensors = model.of_part("embedding") if model.tied_embeddings else model.of_part("head")
    yield from _products((t for t in tensors if len(t.shape) == 2), units, tp, rows)


def _attention(
    mixers: Mapping[Mixer, int], tp: int, rows: float, context: float, kv_format: Format
) -> Iterator[KernelCall]:
    cache = "bf16_kv8" if kv_format.bits <= 8 else "bf16"
    for mixer, count in mixers.items():
        one = mixer.decode_kernel(batch=rows, context=context, tp=tp)
        if one is not None:
            yield KernelCall(
                line="attention", what=one.what, kernel=one.kernel, dtype=cache if one.reads_cache else "bf16",
                count=count, shapes=one.shapes, head_dim=one.head_dim, windowed=one.windowed,
            )  # fmt: skip


def _experts(model: Model, units: MultiplyingUnits, rows: float, *, tp: int, dp: int, ep: int) -> Iterator[KernelCall]:
    stacks = [t for t in model.of_part("layers") if t.experts and len(t.shape) >= 3]
    if not stacks:
        return
    counts: dict[ExpertFfn, int] = {}
    for layer in model.layers:
        if isinstance(layer.ffn, ExpertFfn):
            counts[layer.ffn] = counts.get(layer.ffn, 0) + 1
    dtype = kernel_name(stacks[0].format, units.of(stacks[0].format))
    for ffn, count in counts.items():
        shapes = {
            "tokens": rows * dp, "hidden": float(ffn.hidden or model.hidden), "inter": float(ffn.intermediate),
            "top_k": float(ffn.top_k), "experts": float(ffn.experts), "tp": tp * dp / ep, "ep": float(ep),
            "skew": _SKEW, "matrices": 3.0 if ffn.gated else 2.0,
        }  # fmt: skip
        what = f"{ffn.top_k} of {ffn.experts} experts"
        yield KernelCall(line="experts", what=what, kernel="experts", dtype=dtype, count=count, shapes=shapes)


def _joins(model: Model, tp: int, dp: int, rows: float) -> Iterator[KernelCall]:
    if tp < 2:
        return
    count = sum(layer.mixer is not None for layer in model.layers)
    alone = dp > 1
    count += sum(layer.ffn is not None and not (alone and isinstance(layer.ffn, ExpertFfn)) for layer in model.layers)
    shapes = {"n_bytes": rows * model.hidden * _HIDDEN_BYTES, "ranks": float(tp)}
    yield KernelCall(
        line="all_reduce", what="partial sums", kernel="all_reduce", dtype="bf16", count=count, shapes=shapes
    )
