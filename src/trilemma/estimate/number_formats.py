"""Number formats of a plan against its cards: what the engine refuses, and what would silently be another format."""

from __future__ import annotations

from collections.abc import Iterable

from trilemma.engines import traits_of
from trilemma.engines.loading import computing_format, in_dtype
from trilemma.errors import PlanWarning
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.number_formats import expanded
from trilemma.models.architecture import Model
from trilemma.plans import ServeOptions
from trilemma.question import ServingQuestion


def refused_formats(question: ServingQuestion) -> tuple[str, ...]:
    """Why the engine would refuse the number formats asked for, with what to ask for instead; empty where it takes them."""
    return (*_unloaded(question), *_refused_dtype(question))


def _unloaded(question: ServingQuestion) -> tuple[str, ...]:
    """A checkpoint quantised in a way that the engine does not load; one that is only supposed to exist is not held to it."""
    traits, own = traits_of(question.plan.engine.name), question.model.quantization
    supposed = any(note.startswith("weights taken as") for note in question.model.assumptions)
    if own is None or own.method not in ((() if supposed else traits.unloaded_methods) + traits.never_loaded):
        return ()
    return (traits.loads_none(own.method),)


def _refused_dtype(question: ServingQuestion) -> tuple[str, ...]:
    traits = traits_of(question.plan.engine.name)
    card = question.cluster.accelerator
    if not _lacks_bfloat16(card, traits.bfloat16_from) or traits.bfloat16_below != "refused":
        return ()
    if all((pool.options.dtype or "auto").lower() not in ("bfloat16", "bf16") for pool in question.plan.pools):
        return ()
    return (
        f"--dtype bfloat16 needs compute capability {traits.bfloat16_from:g}, and {card.name} has"
        f" {card.compute_capability:g}; use --dtype float16",
    )


def format_warnings(question: ServingQuestion) -> tuple[PlanWarning, ...]:
    """What runs in another format than it is stored or asked for in, with the formats that the card has units for."""
    model, card = question.model, question.cluster.accelerator
    traits = traits_of(question.plan.engine.name)
    found = [PlanWarning(code="format-expanded", message=text) for text in _expanded(model, card)]
    computed = {computing_format(model, pool.options).name for pool in question.plan.pools}
    if _lacks_bfloat16(card, traits.bfloat16_from) and "bf16" in computed and not _refused_dtype(question):
        message = (
            f"{card.name} has no bfloat16 (compute capability {card.compute_capability:g}, below"
            f" {traits.bfloat16_from:g}): {traits.label} runs the model in float16, in which some models overflow"
        )
        found.append(PlanWarning(code="bfloat16-as-float16", message=message))
    return tuple(found)


def as_computed(model: Model, engine: str, options: ServeOptions) -> Model:
    """``model`` with its unquantised tensors in the format that the engine holds them in: a float32 checkpoint is cast."""
    if model.dtype.bits <= 16 or traits_of(engine).weights == "gguf":
        return model
    return in_dtype(model, computing_format(model, options))


def _expanded(model: Model, card: Accelerator) -> Iterable[str]:
    own = model.quantization
    if own is None:
        return ()
    formats = {tensor.format for tensor in model.tensors if tensor.quantizable}
    told = (expanded(one, card, own.activation_bits) for one in sorted(formats, key=lambda one: one.name))
    return tuple(dict.fromkeys(text for text in told if text is not None))


def _lacks_bfloat16(card: Accelerator, least: float | None) -> bool:
    return least is not None and card.compute_capability is not None and card.compute_capability < least
