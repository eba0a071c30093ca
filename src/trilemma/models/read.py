"""From a hub-style ``config.json`` to a `Model`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from trilemma.data.digest import DATA
from trilemma.errors import InputError, nearest, shorten
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models import families
from trilemma.models.architecture import Model, Quantization
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import build
from trilemma.models.blocks.vision import add_vision
from trilemma.models.fields import Fields, printable
from trilemma.models.quantized import format_of, read_quantization

#: Where wrappers of several parts keep the language model.
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
_VISION_SECTIONS = ("vision_config", "vision_model_config", "visual")
_MULTIMODAL = ("ForConditionalGeneration", "ForVision2Seq")
_DTYPES = ("bf16", "fp16", "fp32", "fp64", "fp8_e4m3", "fp8_e5m2")


def model_from_config(
    config: Mapping[str, Any], *, name: str, source: str = "", quant_config: Mapping[str, Any] | None = None
) -> Model:
    """Build the model that ``config`` (the contents of config.json) describes.

    ``quant_config`` is the contents of ``hf_quant_config.json`` where one lies beside it. A ``model_type`` that no reader
    knows, a missing size and a size that cannot be raise `InputError` naming key and value. Keys that may change memory
    and were not understood end up in ``unknown_fields``, values filled in in ``assumptions``.
    """
    whole = _spoken_part(Fields(config))
    whole.family = whole.text("model_type")
    whole.ignore("spatial_merge_size", "multimodal_projector_bias", "image_token_id", "projector_hidden_act")
    text, reader, partial = _text_part(whole)
    _fill_in(text)
    dtype = _dtype(whole, text)
    text.dtype = dtype.name
    quantization = read_quantization(config, dtype=dtype, quant_config=quant_config)
    whole.ignore("quantization_config", "compression_config", "expert_dtype")
    text.ignore("quantization_config", "compression_config", "expert_dtype")
    plan = reader(text)
    if quantization is not None and quantization.weight_format is None:
        text.leave_out(f"how {quantization.method} stores weights is not known; counted at {dtype.bits:g} bits")
    add = Builder(dtype=dtype, format_of=_format_rule(quantization, dtype))
    layers, mtp_layers = build(add, plan)
    names = whole.words("architectures") or text.words("architectures") or ()
    seeing = any(name.endswith(_MULTIMODAL) for name in names)
    tower = _vision_part(whole, text) or (_usual_tower(whole, text) if seeing else None)
    vision = add_vision(add, tower, text, hidden=plan.hidden)
    if seeing and not vision:
        text.leave_out(
            "the class is multimodal but no tower of known sizes is described: only the text part is counted"
        )
    for note in plan.notes:
        text.assume(note)
    unknown = set(whole.unknown()) | set(text.unknown()) | set(partial)
    return Model(
        name=name,
        family=text.family if partial or not whole.family else whole.family,
        hidden=plan.hidden,
        vocab=plan.vocab,
        max_positions=plan.max_positions,
        layers=layers,
        mtp_layers=mtp_layers,
        dtype=dtype,
        tied_embeddings=plan.tied,
        tensors=tuple(add.tensors),
        quantization=quantization,
        multimodal=bool(vision) or seeing or bool(partial),
        vision=vision,
        unknown_fields=tuple(sorted(unknown)),
        assumptions=tuple(dict.fromkeys((*whole.assumptions, *text.assumptions))),
        left_out=tuple(dict.fromkeys((*whole.left_out, *text.left_out))),
        source=source,
    )


def _spoken_part(whole: Fields) -> Fields:
    """Omni models wrap a "thinker" that reads and writes text beside speech parts that engines of text do not load."""
    thinker = whole.section("thinker_config")
    if thinker is None:
        return whole
    thinker.where = ""
    thinker.assume("speech output (talker, vocoder) is not counted: text engines load the thinker alone")
    return thinker


def _text_part(whole: Fields) -> tuple[Fields, families.FamilyReader, tuple[str, ...]]:
    """The part that describes the language model, its reader, and sections that nobody understood."""
    for key in _TEXT_SECTIONS:
        part = whole.section(key)
        if part is None:
            continue
        inner = part.text("model_type")
        part.family = inner or whole.family
        _inherit(part, whole)
        reader = families.find(inner) or families.find(whole.family)
        if reader is None:
            raise _unknown_type(inner or whole.family)
        wrapper_known = not whole.family or whole.family in families.WRAPPERS or families.find(whole.family) is not None
        return part, reader, () if wrapper_known else (printable(f"model_type={whole.family}"),)
    reader = families.find(whole.family)
    if reader is None:
        raise _unknown_type(whole.family)
    return whole, reader, ()


def _inherit(part: Fields, whole: Fields) -> None:
    """Wrappers state tying and the number format for all parts."""
    values = dict(part.values)
    for key in ("tie_word_embeddings", "torch_dtype", "dtype"):
        if values.get(key) is None and whole.values.get(key) is not None:
            values[key] = whole.values[key]
    part.values = values
    whole.ignore("tie_word_embeddings")


def _fill_in(text: Fields) -> None:
    """Sizes whose absence means a number in the library's configuration class, and not that there is no such part.

    A key that is there and null says that there is none.
    """
    for key, value in _defaults().get(text.family, {}).items():
        if key not in text.values:
            text.values = {**text.values, key: value}
            text.assume(f"{key} is not given; taken as {value}, the default of {text.family}")


@cache
def _defaults() -> dict[str, dict[str, int]]:
    document = json.loads((DATA / "model_defaults.json").read_text(encoding="utf-8"))
    types: dict[str, dict[str, int]] = document["types"]
    return types


def _vision_part(whole: Fields, text: Fields) -> Fields | None:
    for fields in (whole, text):
        for key in _VISION_SECTIONS:
            part = fields.section(key, family=whole.family or text.family)
            if part is not None:
                return part
    return None


def _usual_tower(whole: Fields, text: Fields) -> Fields | None:
    """The tower that all published models of the family share, where a multimodal class comes without its own."""
    usual = _usual_towers().get(whole.family)
    if usual is None:
        return None
    text.assume(f"vision_config is not given; taken as the tower of {whole.family}: {usual['source']}")
    tower = Fields(usual["vision_config"], where="vision_config", family=whole.family)
    tower.assumptions, tower.left_out = text.assumptions, text.left_out
    return tower


@cache
def _usual_towers() -> dict[str, dict[str, Any]]:
    document = json.loads((DATA / "vision_towers.json").read_text(encoding="utf-8"))
    return {family: row for family, row in document.items() if isinstance(row, dict)}


def _dtype(whole: Fields, text: Fields) -> Format:
    stated = text.text("dtype", "torch_dtype") or whole.text("dtype", "torch_dtype")
    if stated in ("", "auto"):
        text.assume("torch_dtype is not given; unquantised tensors are taken as bf16")
        return catalogue.get("bf16")
    found = catalogue.get(stated)
    if found.name not in _DTYPES:
        raise InputError(f"torch_dtype is {shorten(stated)!r}; give one of bfloat16, float16, float32")
    return found


def _format_rule(quantization: Quantization | None, dtype: Format) -> Any:
    if quantization is None:
        return None
    return lambda name, role: format_of(quantization, name, role, dtype)


def _unknown_type(model_type: str) -> InputError:
    if not model_type:
        return InputError("the configuration has no model_type; give one, such as llama")
    near = nearest(model_type, families.known())
    offer = f"; near: {', '.join(near)}" if near else ""
    return InputError(
        f"model_type {shorten(model_type)!r} is not known, so its tensors cannot be counted{offer}"
        " (a safetensors or GGUF file of the model is read exactly)"
    )
