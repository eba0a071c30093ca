"""The model that a row names, its weights in the scheme that the row states."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from trilemma.errors import InputError, shorten
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import Model


def model_of_row(row: Row, models_dir: str | Path | None, assumed: list[str]) -> tuple[Model, str]:
    """The model as the row runs it. A folder may hold a base or sibling copy, so where the row contradicts it the row wins."""
    name = row.text("model")
    if not name:
        raise UnusableRow("names no model")
    place = None if models_dir is None else str(models_dir)
    model = _loaded(name[:300], place)
    if isinstance(model, str):
        raise UnusableRow(model)
    text = row.text("quantization")
    scheme = quantization_scheme(text)
    if is_unstated(scheme):
        return model, str(scheme)
    if scheme is None or _stores_alike(model, scheme):
        assumed.extend(model.assumptions)
        return model, model.quantization.method if model.quantization else "none"
    stored = _requantized(name[:300], place, scheme)
    if isinstance(stored, str):
        raise UnusableRow(f"quantization {shorten(text)!r}: {stored}")
    assumed.extend(note for note in stored.assumptions if note not in model.assumptions)
    assumed.append(f"weights stored as {scheme}: said by {shorten(text or name)!r}, not by the model's files")
    return stored, scheme


def is_unstated(scheme: str | None) -> bool:
    from trilemma.models.quantized.words import unstated_methods

    return scheme in unstated_methods()


def _stores_alike(model: Model, scheme: str) -> bool:
    """Whether the model's own files already say what ``scheme`` says: elements of the same kind and width."""
    from trilemma.models.quantized import find_scheme

    asked = find_scheme(scheme)
    if model.quantization is None or not asked.quantises:
        return model.quantization is None and not asked.quantises
    stored = [model.quantization.weight_format, *(form for form, _ in model.quantization.layer_formats)]
    return any(form and (form.kind, form.bits) == (asked.format.kind, asked.format.bits) for form in stored)


@lru_cache(maxsize=512)
def _loaded(name: str, models_dir: str | None) -> Model | str:
    """The model, or why there is none (cached: tables name the same model again and again)."""
    from trilemma.models.resolve import load_model

    try:
        model = load_model(name, models_dir=models_dir)
    except InputError as error:
        return error.flags
    return model if models_dir is None else _more_exact(model, name)


def _more_exact(model: Model, name: str) -> Model:
    """The catalogue's model of the same name where it alone knows which modules are quantised.

    Folders of configurations often hold the base model's under a quantised name; laying the scheme over every linear
    layer then counts modules that the publisher left in 16 bits.
    """
    from trilemma.models.resolve import load_model

    if model.quantization is None or model.quantization.ignored or model.quantization.layer_formats:
        return model
    try:
        listed = load_model(name)
    except InputError:
        return model
    same = len(listed.layers) == len(model.layers) and listed.hidden == model.hidden and listed.vocab == model.vocab
    known = listed.quantization
    if not same or known is None or known.weight_format is None or not known.ignored:
        return model
    ours = model.quantization.weight_format
    return listed if ours is not None and ours.bits == known.weight_format.bits else model


@lru_cache(maxsize=512)
def _requantized(name: str, models_dir: str | None, scheme: str) -> Model | str:
    from trilemma.models.quantized import requantize

    model = _loaded(name, models_dir)
    if isinstance(model, str):
        return model
    try:
        return requantize(model, scheme)
    except InputError as error:
        return error.flags


#: Words of a quantisation column that name a toolkit or a kernel, not how weights are stored.
_TOOLKITS = ("compressed-tensors", "compressed_tensors", "modelopt", "quark", "marlin")


def quantization_scheme(text: str) -> str | None:
    """The storage scheme that a quantisation column means; None where it is empty or names a toolkit only.

    Raises `UnusableRow` for a column that is filled but says nothing that is known.
    """
    from trilemma.models.quantized.schemes import scheme_in
    from trilemma.models.quantized.words import unstated_methods

    text = text.lower()[:300]
    words = [word for word in re.split(r"[^a-z0-9.+]+", text) if word]
    unstated = [word for word in words if word in unstated_methods()]
    if unstated:
        return unstated[0]
    found = [scheme_in(words, position) for position in range(len(words))]
    named = [(length, scheme.name) for length, scheme in found if scheme is not None]
    if named:
        return max(named)[1]
    if text and not any(word in text for word in _TOOLKITS):
        raise UnusableRow(f"quantization {shorten(text)!r} does not say how weights are stored")
    return None
