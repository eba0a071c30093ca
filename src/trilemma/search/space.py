"""The plans that are searched: every layout of the GPUs, every precision the cards can run, and how many are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.estimate.layouts import violations
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import ExpertFfn, Model, RecurrentState
from trilemma.models.catalogue import hub_id
from trilemma.models.parameters import weight_bytes
from trilemma.models.quantized import find_scheme, requantize
from trilemma.plans import Layout
from trilemma.search.quality import weight_quality

#: Requests in flight per attention replica that are tried when no load is given.
BATCHES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
#: Bytes of a narrower scheme against those as published; above it a conversion buys nothing.
_CLEARLY_FEWER = 0.9
#: The word for the weights as their publisher stores them.
AS_PUBLISHED = "as published"
_AS_PUBLISHED_WORDS = {"as-is", "asis", "as_is", "published", "auto", AS_PUBLISHED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """Degrees that the user has settled; None is searched. ``expert_parallel`` True spreads experts whole, False never."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    expert_parallel: bool | None = None
    memory_fraction: float | None = None
    max_seqs: int | None = None
    max_batched_tokens: int | None = None
    eager: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """How weights may be stored: ``on_load`` is the engine's own quantisation of the published checkpoint while loading,
    ``checkpoint`` says which checkpoint the plan needs."""

    name: str
    model: Model
    on_load: str | None = None
    checkpoint: str = AS_PUBLISHED
    quality: str = "unchanged"

    @property
    def served_as(self) -> str:
        """What to name on the engine's command line: the hub id, or a folder or GGUF file that has to be made."""
        published = hub_id(self.model.name)
        if self.checkpoint == AS_PUBLISHED:
            return published
        name, quantization = published.rpartition("/")[2], self.model.quantization
        if quantization is not None and quantization.method == "gguf":
            return f"./{name}-{self.name.removeprefix('gguf-').upper()}.gguf"
        return f"./{name}-{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layouts:
    """Layouts of one cluster: those that are legal as a table, all that were looked at, and why the others are not."""

    layout: Layout
    searched: int
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def legal(self) -> int:
        return len(np.atleast_1d(self.layout.tp))


def layouts(model: Model, *, gpus: int, fixed: Fixed) -> Layouts:
    """Every (tp, pp, dp) with ``tp·pp·dp = gpus``, experts split and spread, less what the engine refuses.

    ``dp`` of a dense model are independent replicas; of a mixture they are attention replicas over common experts.
    Raises `InputError` when the degrees given cannot be laid out.
    """
    _check_fixed(fixed, gpus)
    rows = [
        (tp, pp, gpus // (tp * pp), ep)
        for tp in _divisors(gpus)
        for pp in _divisors(gpus // tp)
        for ep in _expert_groups(model, tp * (gpus // (tp * pp)), fixed)
        if fixed.tp in (None, tp) and fixed.pp in (None, pp) and fixed.dp in (None, gpus // (tp * pp))
    ]
    if not rows:
        raise InputError(_no_layout(fixed, gpus))
    tp, pp, dp, ep = np.array(rows, dtype=np.int64).T
    everything = Layout(tp=tp, pp=pp, dp=dp, ep=ep)
    good, rejected = np.ones(len(rows), dtype=bool), {}
    for rule, broken in violations(model, everything).items():
        newly = good & np.broadcast_to(broken, good.shape)
        if newly.any():
            rejected[rule] = int(newly.sum())
        good &= ~newly
    return Layouts(layout=take(everything, good), searched=len(rows), rejected=rejected)


def take(layout: Layout, chosen: NDArray[Any]) -> Layout:
    """The rows of a table of layouts that a mask or index array names."""
    return Layout(
        tp=np.asarray(layout.tp)[chosen], pp=np.asarray(layout.pp)[chosen], dp=np.asarray(layout.dp)[chosen],
        ep=np.asarray(layout.ep)[chosen],
    )  # fmt: skip


def precisions(model: Model, accelerator: Accelerator, wanted: Sequence[str] | None) -> list[Precision]:
    """The ways to store ``model``'s weights on ``accelerator``: those ``wanted``, else as published and every narrower
    scheme that the card runs.

    vLLM quantises 16-bit checkpoints to FP8 while loading; the other schemes need a converted checkpoint.
    """
    if wanted:
        return [_precision(model, name) for name in wanted]
    published = weight_bytes(model)
    narrower = [_precision(model, name) for name in _narrower(model, accelerator)]
    return [
        _precision(model, AS_PUBLISHED),
        *(one for one in narrower if weight_bytes(one.model) < _CLEARLY_FEWER * published),
    ]


def kv_dtypes(model: Model, accelerator: Accelerator, wanted: Sequence[str] | None) -> list[str]:
    """Cache formats to try: the checkpoint's own, and FP8 where the card has it and the checkpoint does not already."""
    if wanted:
        return list(wanted)
    asks = model.quantization.kv_format if model.quantization is not None else None
    keeps_tokens = any(not isinstance(mixer, RecurrentState) for mixer in model.mixers)
    if keeps_tokens and not (asks or "").startswith("fp8") and "fp8" in accelerator.hardware_formats:
        return ["auto", "fp8"]
    return ["auto"]


def _precision(model: Model, name: str) -> Precision:
    if name.strip().lower() in _AS_PUBLISHED_WORDS:
        return Precision(name=AS_PUBLISHED, model=model)
    scheme = find_scheme(name)
    own = model.quantization
    if (own is None and not scheme.quantises) or (own is not None and own.weight_format == scheme.format):
        return Precision(name=AS_PUBLISHED, model=model)
    on_load = "fp8" if own is None and scheme.name == "fp8" else None
    return Precision(
        name=scheme.name,
        model=requantize(model, name),
        on_load=on_load,
        checkpoint=AS_PUBLISHED if on_load else f"a checkpoint converted to {scheme.name}",
        quality=weight_quality(name) if scheme.quantises else "unchanged",
    )


def _narrower(model: Model, accelerator: Accelerator) -> list[str]:
    """Schemes that store fewer bits than the checkpoint does and that the card runs, widest first."""
    formats = set(accelerator.hardware_formats)
    nvidia = (accelerator.compute_capability or 0.0) >= 7.5
    own = model.quantization
    bits = own.weight_format.bits if own is not None and own.weight_format is not None else model.dtype.bits
    names: list[str] = []
    if bits >= 16:
        names += ["fp8"] if "fp8" in formats else ["w8a8"] if "int8" in formats and nvidia else []
    if bits >= 8:
        if "nvfp4" in formats:
            names.append("nvfp4")
        elif "mxfp4" in formats:
            names.append("mxfp4")
        if not formats & {"nvfp4", "mxfp4"} or bits >= 16:
            names += ["awq"] if nvidia or accelerator.vendor.lower().startswith("amd") else []
    return names


def _expert_groups(model: Model, group: int, fixed: Fixed) -> list[int]:
    """Sizes of the expert-parallel group to try: experts split by every rank (1), or spread whole over all of them."""
    has_experts = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    if fixed.expert_parallel is not None:
        return [group if fixed.expert_parallel else 1]
    return [1, group] if has_experts and group > 1 else [1]


def _check_fixed(fixed: Fixed, gpus: int) -> None:
    for name in ("tp", "pp", "dp"):
        degree = getattr(fixed, name)
        if degree is not None and (degree < 1 or gpus % degree):
            good = ", ".join(str(d) for d in _divisors(gpus))
            raise InputError(f"--{name} {degree} does not divide the {gpus} GPUs of --gpu; use one of {good}")


def _no_layout(fixed: Fixed, gpus: int) -> str:
    given = " x ".join(f"--{n} {getattr(fixed, n)}" for n in ("tp", "pp", "dp") if getattr(fixed, n) is not None)
    return f"{given} cannot be laid out on the {gpus} GPUs of --gpu; their product with the rest must be {gpus}"


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
