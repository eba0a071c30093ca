"""Named schemes: what a model becomes when a table, a flag or a hub name says only ``fp8``, ``awq`` or ``nvfp4``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from trilemma.data.digest import DATA
from trilemma.errors import InputError, UnknownName
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model, Quantization, Tensor
from trilemma.models.quantized.coverage import is_kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """How a family of checkpoints stores linear layers.

    ``kept`` are roles (or first words of roles) left in the model's own format beside embeddings, head, norms, routers
    and vision; ``kept_with_experts`` holds for mixtures of experts only; ``only`` limits the scheme to roles where the
    model has them. ``whole`` schemes (GGUF) quantise embeddings and head as well. ``source`` says who stores it so.
    """

    name: str
    method: str
    format: Format
    activation_bits: int | None = None
    kept: tuple[str, ...] = ()
    kept_with_experts: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    mtp: bool = False
    whole: bool = False
    quantises: bool = True
    names: tuple[str, ...] = ()
    source: str = ""

    def covers(self, tensor: Tensor, *, has_experts: bool) -> bool:
        """Whether the scheme stores ``tensor`` in its format, in a model with or without experts."""
        if self.whole:
            return len(tensor.shape) > 1 and tensor.role not in ("router", "recurrent.conv") and tensor.part != "vision"
        if not tensor.quantizable or is_kept(tensor.role) or tensor.part in ("vision", "embedding", "head"):
            return False
        if tensor.part == "mtp" and not self.mtp:
            return False
        first = tensor.role.partition(".")[0]
        kept = self.kept + (self.kept_with_experts if has_experts else ())
        if first in kept or tensor.role in kept:
            return False
        return not (has_experts and self.only) or first in self.only


def find_scheme(name: str) -> Scheme:
    """The scheme called ``name`` (``fp8``, ``w4a16``, ``awq``, ``bitsandbytes``, ``bf16``, ``q4_k_m``, …).

    Raises `UnknownName` with near names.
    """
    key = name[:200].strip().lower().replace(" ", "-")
    known = _by_name()
    found = known.get(key) or known.get(key.replace("_", "-")) or known.get(key.replace("-", "_"))
    if found is None:
        raise UnknownName(
            "quantization scheme", name, known, hint="such as fp8, awq, gptq, w4a16, nvfp4, mxfp4, nf4, bf16"
        )
    return found


def scheme_names() -> Mapping[str, Scheme]:
    """Every spelling with its scheme."""
    return dict(_by_name())


def requantize(model: Model, scheme: str) -> Model:
    """``model`` with its linear layers stored as ``scheme`` and everything else in its unquantised format.

    The tensors are those that publishers of the scheme usually quantise; that they are the usual ones is listed in
    ``assumptions``. Raises `UnknownName` for a scheme that is not known.
    """
    chosen = find_scheme(scheme)
    dtype = model.dtype if chosen.quantises else chosen.format
    has_experts = any(tensor.experts for tensor in model.tensors)
    before = model.quantization
    tensors = tuple(_stored(tensor, model, chosen, dtype, has_experts) for tensor in model.tensors)
    if not chosen.quantises:
        note = f"weights taken as unquantised {chosen.format.name}"
        return replace(
            model,
            dtype=dtype,
            tensors=tensors,
            quantization=None,
            assumptions=_added(model.assumptions, note if before is not None else ""),
        )
    quantization = Quantization(
        method=chosen.method, weight_format=chosen.format, activation_bits=chosen.activation_bits
    )
    note = f"weights taken as {chosen.name} ({chosen.format.name}), modules usually left alone in {dtype.name} ({chosen.source})"
    return replace(model, tensors=tensors, quantization=quantization, assumptions=_added(model.assumptions, note))


def _stored(tensor: Tensor, model: Model, scheme: Scheme, dtype: Format, has_experts: bool) -> Tensor:
    """``tensor`` under ``scheme``; a tensor wider than the model's own format (FP32 states) keeps its width."""
    if scheme.quantises and scheme.covers(tensor, has_experts=has_experts):
        stored = scheme.format
    elif tensor.quantizable or tensor.format == model.dtype or tensor.format.granularity != "none":
        stored = dtype
    else:
        stored = tensor.format
    return tensor if stored == tensor.format else replace(tensor, format=stored)


def _added(assumptions: Iterable[str], note: str) -> tuple[str, ...]:
    kept = tuple(assumptions)
    return kept if not note or note in kept else (*kept, note)


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads((DATA / "models" / "schemes.toml").read_text(encoding="utf-8"))


@cache
def _schemes() -> tuple[Scheme, ...]:
    document = _document()
    schemes = [
        Scheme(
            name=name,
            method=row["method"],
            format=catalogue.get(row["format"]),
            activation_bits=row.get("activation_bits"),
            kept=tuple(row.get("kept", ())),
            kept_with_experts=tuple(row.get("kept_with_experts", ())),
            only=tuple(row.get("only", ())),
            mtp=row.get("mtp", False),
            names=tuple(row["names"]),
            source=row["source"],
        )
        for name, row in document["schemes"].items()
    ]
    for name, names in document["unquantised"].items():
        schemes.append(
            Scheme(name=name, method="none", format=catalogue.get(name), quantises=False, names=tuple(names))
        )
    packed = document["gguf"]
    for name, names in packed.items():
        if isinstance(names, list):
            schemes.append(
                Scheme(
                    name=f"gguf-{name}",
                    method="gguf",
                    format=catalogue.get(name),
                    whole=True,
                    mtp=True,
                    names=tuple(names),
                    source=packed["source"],
                )
            )
    return tuple(schemes)


@cache
def _by_name() -> dict[str, Scheme]:
    known: dict[str, Scheme] = {}
    for scheme in _schemes():
        for name in (scheme.name, *scheme.names):
            if known.setdefault(name.lower(), scheme) is not scheme:
                raise InputError(f"two quantization schemes are called {name!r} in schemes.toml")
    return known
