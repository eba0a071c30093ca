"""A model's weights as its name states them, where its configuration states none or others."""

from __future__ import annotations

from dataclasses import replace

from trilemma.errors import shorten
from trilemma.models.architecture import Model, Quantization
from trilemma.models.naming import bits_a_weight
from trilemma.models.publishers import with_cache
from trilemma.models.quantized import gguf_mixes, requantize, restate, storage
from trilemma.models.quantized.schemes import Scheme
from trilemma.models.quantized.words import states_bits


def under_scheme(model: Model, scheme: Scheme, name: str) -> Model:
    """``model`` stored as the ``scheme`` that ``name`` states, unless its own configuration agrees."""
    if model.quantization is not None and _agrees(model.quantization, scheme):
        return model
    stated = model.quantization.method if model.quantization else "no quantisation"
    changed = with_cache(requantize(model, scheme.name), name)
    note = f"the name {shorten(name)!r} states {scheme.name}, its configuration {stated}: the name was followed"
    return replace(changed, assumptions=(*changed.assumptions, note))


def under_unstated(model: Model, method: str, name: str) -> Model:
    """``model`` marked as quantised by ``method`` in a way that the name does not tell: sizes stay unquantised, and say so."""
    nearest = gguf_mixes.nearest(name) if method == "gguf" else None
    if nearest is not None:
        found = requantize(model, nearest)
        note = f"{shorten(name)} names a type that is not known here: taken by the bits that it states"
        return replace(found, assumptions=(*found.assumptions, note))
    stated = bits_a_weight(name) if states_bits(method) else None
    if stated is not None:
        of_all = storage.packed_bits(method, stated)
        note = f"weights taken as {method} of {stated:g} bits each, as the name states; embedding and norms in {model.dtype.name}"
        found = restate(
            model, Quantization(method=method, weight_format=of_all, layer_formats=((of_all, ("lm_head",)),))
        )
        return replace(found, assumptions=(*found.assumptions, note))
    note = f"{shorten(name)} is stored by {method}; how many bits a weight has is not stated"
    return replace(
        model,
        quantization=Quantization(method=method, weight_format=None, notes=(note,)),
        unknown_fields=(*model.unknown_fields, f"quantization: {method}"),
        assumptions=(*model.assumptions, f"{note}: counted at {model.dtype.bits:g} bits"),
    )


def _agrees(quantization: Quantization, scheme: Scheme) -> bool:
    """Whether a checkpoint's own description is of the kind that its name states."""
    if quantization.weight_format is None:
        return quantization.method in ("exl2", "exl3")
    bits = {quantization.weight_format.bits} | {stored.bits for stored, _ in quantization.layer_formats}
    return scheme.format.bits in bits
