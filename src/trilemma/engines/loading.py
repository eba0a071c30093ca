"""A model as an engine loads it: quantised while loading, stored in another number format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trilemma.engines import traits_of
from trilemma.errors import InputError, PlanWarning
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model, Tensor
from trilemma.models.naming import spell
from trilemma.models.quantized import requantize
from trilemma.models.quantized.gguf_mixes import published_mix
from trilemma.plans import ServeOptions

_IN_16_BITS = frozenset({"f16", "fp16", "bf16"})


def as_stored(
    model: Model, options: ServeOptions, quantizes_while_loading: Mapping[str, str]
) -> tuple[Model, tuple[PlanWarning, ...]]:
    """``model`` as ``--quantization`` makes it: 16-bit checkpoints are stored narrower by methods that work at load.

    A checkpoint that is quantised already stays as it is; other methods need such a checkpoint, which is said.
    """
    method = (options.quantization or "").lower()
    if not method or model.quantization is not None:
        return model, ()
    scheme = quantizes_while_loading.get(method)
    if scheme is None:
        message = f"--quantization {method} needs a checkpoint stored so; {model.name} is counted in {model.dtype.name}"
        return model, (PlanWarning(code="quantization-not-counted", message=message),)
    return requantize(model, scheme), ()


def while_loading(model: Model, options: ServeOptions) -> Model:
    """A 16-bit checkpoint as ``--quantization`` stores it; one that is quantised already as it is.

    Raises `InputError` for methods that need a checkpoint in their own format.
    """
    wanted = options.quantization
    if wanted is None or model.quantization is not None:
        return model
    if wanted in ("fp8", "bitsandbytes"):
        return requantize(model, "nf4" if wanted == "bitsandbytes" else wanted)
    raise InputError(
        f"--quantization {wanted} needs a checkpoint in that format, and {model.name} is not; name the quantised one, or"
        " use fp8, which quantises while loading"
    )


def as_published_for(model: Model, engine: str) -> Model:
    """``model`` as it is published for ``engine``: where that reads GGUF files, checkpoints that have a usual mix are in it."""
    own = model.quantization
    mix = published_mix(own.method) if own is not None and traits_of(engine).weights == "gguf" else None
    return model if mix is None else requantize(model, mix)


def as_named_gguf(model: Model, name: str, engine: str) -> Model:
    """``model`` as a GGUF file or repository called ``name`` holds it, unless the name says that the rest is in 16 bits."""
    words = spell(name.removesuffix(".gguf")).words
    if "gguf" not in name.lower() or _IN_16_BITS.intersection(words):
        return model
    return as_published_for(model, engine)


def lies_in_gguf(method: str | None) -> bool:
    """Whether weights quantised by ``method`` (None: 16 bits) may lie in a GGUF file: its own types, and those published so."""
    return method in (None, "gguf") or published_mix(method) is not None


def in_dtype(model: Model, dtype: Format) -> Model:
    """``model`` with its unquantised tensors stored as ``dtype`` (``--dtype float32`` and the like)."""
    if dtype.bits == model.dtype.bits:
        return model
    wide = tuple(
        replace(tensor, format=dtype) if tensor.format.name == model.dtype.name else tensor for tensor in model.tensors
    )
    return replace(model, dtype=dtype, tensors=wide)


def computing_format(model: Model, options: ServeOptions) -> Format:
    """The format that the model computes in; a float32 checkpoint runs in 16 bits unless asked otherwise."""
    name = (options.dtype or "auto").lower()
    if name == "auto":
        return catalogue.get("bf16") if model.dtype.bits > 16 else model.dtype
    return catalogue.get(name)


def absorbed_copies(model: Model) -> list[Tensor]:
    """16-bit copies of quantised latent up-projections, which decode multiplies into queries and outputs.

    vllm/model_executor/layers/attention/mla_attention.py, process_weights_after_loading, and SGLang's
    models/deepseek_v2.py, post_load_weights: views where the matrix is 16-bit.
    """
    latent = {layer.index for layer in model.layers if layer.mixer is not None and layer.mixer.is_latent}
    wide = catalogue.get("bf16")
    return [
        replace(tensor, name=f"{tensor.name}.absorbed", format=wide)
        for tensor in model.tensors
        if tensor.role == "mla.kv_b" and tensor.layer in latent and tensor.format.bits < 16
    ]


def kept_scales(model: Model, scale_bytes: float) -> list[Tensor]:
    """Scales of MXFP4 experts in checkpoints called FP8, ``scale_bytes`` each, that a loader keeps beside the repacked ones."""
    if not scale_bytes or model.quantization is None or model.quantization.method != "fp8":
        return []
    return [
        replace(tensor, name=f"{tensor.name}.loaded_scales", format=_scales(tensor.format.group, scale_bytes))
        for tensor in model.tensors
        if tensor.experts and tensor.format.element == "fp4_e2m1" and tensor.format.scale_format == "e8m0"
    ]


def _scales(group: int, scale_bytes: float) -> Format:
    """What one scale for each ``group`` of elements comes to, by the element."""
    return Format(name="loaded_scales", bits=8 * scale_bytes / group)


def weights_relative(model: Model, spread: Mapping[str, float]) -> float:
    """How well the bytes of a checkpoint are known: 16 bits, as its own configuration says, or as such ones usually are.

    GGUF mixes are rules and as good as a configuration, unpublished recipes taken like the nearest mix are not. Publishers'
    other 4-bit checkpoints differ most: in group size, and in what they leave in 16 bits. Where nobody states how many bits a
    weight has, sizes are those of 16. ``spread`` holds the half-widths by those names.
    """
    if model.quantization is None:
        return spread["exact_weights_relative"]
    if model.quantization.weight_format is None:
        return spread["unstated_bits_relative"]
    assumed = [note for note in model.assumptions if note.startswith("weights taken as")]
    if not assumed or all("tensor by tensor" in note for note in assumed):
        return spread["quantized_weights_relative"]
    stored = model.quantization.weight_format
    if any("nearest mix" in note for note in assumed):
        return spread["assumed_4_bit_relative"]
    return spread["assumed_8_bit_relative" if stored is not None and stored.bits >= 8 else "assumed_4_bit_relative"]
