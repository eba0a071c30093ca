"""Named schemes: what a model becomes when a table, a flag or a hub name says only ``fp8``, ``awq`` or ``nvfp4``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, UnknownName
from trilemma.formats import catalogue
from trilemma.formats.computing import units
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model, Quantization, Tensor
from trilemma.models.quantized import gguf_mixes
from trilemma.models.quantized.coverage import format_of, is_kept

_WORDS = re.compile(r"[^a-z0-9._]+")
_LONGEST = 5
#: Roles that toolkits leave alone unless their schemes say otherwise.
_ENDS = ("embedding", "head", "router")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """How a family of checkpoints stores linear layers.

    ``kept`` are roles (or first words of roles) left in the model's own format beside embeddings, head, norms, routers
    and vision; ``kept_with_experts`` holds for mixtures of experts only, ``kept_beside_states_or_latents`` for
    those of them with recurrent states or latent attention; ``only`` limits the scheme to roles where the
    model has them. ``source`` says who stores it so, ``order`` its place in the data file: where a name holds words of two,
    the earlier wins. Dense models with recurrent layers store ``mixer_roles`` as ``mixer_format``, and their head too where
    ``head_in_hybrids``. With ``ends`` embedding, head and routers are stored so too. A ``mix`` (GGUF) decides tensor by tensor,
    embeddings and head as well; ``format`` is its main type.
    """

    name: str
    method: str
    format: Format
    activation_bits: int | None = None
    kept: tuple[str, ...] = ()
    kept_with_experts: tuple[str, ...] = ()
    kept_beside_states_or_latents: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    mtp: bool = False
    quantises: bool = True
    names: tuple[str, ...] = ()
    source: str = ""
    order: int = 0
    mixer_format: Format | None = None
    mixer_roles: tuple[str, ...] = ()
    head_in_hybrids: bool = False
    ends: bool = False
    mix: gguf_mixes.GgufMix | None = None

    def format_in(self, tensor: Tensor, *, has_experts: bool, dense_hybrid: bool, plain: bool) -> Format | None:
        """What the scheme stores ``tensor`` as; None where it leaves it alone."""
        if dense_hybrid and self.mixer_format is not None:
            if tensor.quantizable and tensor.part == "layers" and tensor.role.partition(".")[0] in self.mixer_roles:
                return self.mixer_format
            if tensor.role == "head" and self.head_in_hybrids:
                return self.format
        return self.format if self.covers(tensor, has_experts=has_experts, plain=plain) else None

    def covers(self, tensor: Tensor, *, has_experts: bool, plain: bool) -> bool:
        """Whether the scheme stores ``tensor`` in its format, with or without experts, where attention is ``plain`` or not."""
        if self.ends and len(tensor.shape) > 1 and tensor.role in _ENDS:
            return True
        if not tensor.quantizable or is_kept(tensor.role) or tensor.part in ("vision", "embedding", "head"):
            return False
        if tensor.part == "mtp" and not self.mtp:
            return False
        first = tensor.role.partition(".")[0]
        kept = self.kept + (self.kept_with_experts if has_experts else ())
        kept += self.kept_beside_states_or_latents if has_experts and not plain else ()
        if first in kept or tensor.role in kept:
            return False
        return not (has_experts and self.only) or first in self.only


def find_scheme(name: str) -> Scheme:
    """The scheme called ``name`` (``fp8``, ``w4a16``, ``AWQ``, ``int4 (AutoRound)``, ``bitsandbytes``, ``bf16``, ``Q4_K_M``, …).

    Of a longer text the one scheme that it names counts. Raises `UnknownName` with near names.
    """
    words = tuple(word for word in _WORDS.split(name[:200].strip().lower()) if word)
    found: Scheme | None = None
    position = 0
    while position < len(words):
        length, scheme = scheme_in(words, position)
        if scheme is not None and (found is None or scheme.order < found.order):
            found = scheme
        position += length or 1
    if found is None:
        raise UnknownName(
            "quantization scheme", name, _by_name(), hint="such as fp8, awq, gptq, w4a16, nvfp4, mxfp4, nf4, bf16"
        )
    return found


def scheme_in(words: Sequence[str], position: int) -> tuple[int, Scheme | None]:
    """The scheme that the longest run of ``words`` from ``position`` names, with the length of the run; (0, None) without."""
    known = _by_words()
    for length in range(min(_LONGEST, len(words) - position), 0, -1):
        found = known.get("-".join(words[position : position + length]).replace("_", "-").replace(".", "-"))
        if found is not None:
            return length, found
    return 0, None


def schemes() -> tuple[Scheme, ...]:
    """Every scheme, in the order of the data file."""
    return _schemes()


def requantize(model: Model, scheme: str) -> Model:
    """``model`` with its linear layers stored as ``scheme`` and everything else in its unquantised format.

    The tensors are those that publishers of the scheme usually quantise; that they are the usual ones is listed in
    ``assumptions``. Raises `UnknownName` for a scheme that is not known.
    """
    chosen = find_scheme(scheme)
    dtype = model.dtype if chosen.quantises else chosen.format
    has_experts = any(tensor.experts for tensor in model.tensors)
    dense_hybrid = not has_experts and any(mixer.keeps_state for mixer in model.mixers)
    plain = not any(mixer.keeps_state or mixer.is_latent or mixer.is_compressed for mixer in model.mixers)
    before = model.quantization
    model = replace(model, assumptions=_settled(model))
    of_mix = chosen.mix.formats(model) if chosen.mix is not None else None

    def format_in(tensor: Tensor) -> Format | None:
        if of_mix is not None:
            return of_mix(tensor)
        return chosen.format_in(tensor, has_experts=has_experts, dense_hybrid=dense_hybrid, plain=plain)

    tensors = tuple(_stored(tensor, model, dtype, format_in(tensor)) for tensor in model.tensors)
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
    told = f"weights taken as {chosen.name} ({chosen.format.name})"
    if chosen.mix is None:
        kept = "tensor by tensor as the toolkit does" if chosen.ends else f"modules usually left alone in {dtype.name}"
        note = f"{told}, {kept} ({chosen.source})"
    else:
        mixed = (
            f"as the nearest mix, {chosen.mix.like}"
            if chosen.mix.like
            else "tensor by tensor as llama-quantize mixes types"
        )
        note = f"{told}, {mixed} ({chosen.source})"
    return replace(model, tensors=tensors, quantization=quantization, assumptions=_added(model.assumptions, note))


def restate(model: Model, quantization: Quantization) -> Model:
    """``model`` with its tensors stored as another checkpoint of the same architecture says."""
    tensors = tuple(
        _stored(tensor, model, model.dtype, format_of(quantization, tensor.name, tensor.role, model.dtype))
        for tensor in model.tensors
    )
    return replace(model, tensors=tensors, quantization=quantization)


def _stored(tensor: Tensor, model: Model, dtype: Format, wanted: Format | None) -> Tensor:
    """``tensor`` as ``wanted``, else unquantised; one wider than the model's own format (FP32 states) keeps its width."""
    if wanted is None or wanted == dtype:
        plain = tensor.quantizable or tensor.format == model.dtype or tensor.format.granularity != "none"
        wanted = dtype if plain else tensor.format
    return tensor.stored_as(wanted)


def _settled(model: Model) -> tuple[str, ...]:
    """The assumptions of ``model`` without the one about an unstated weight format, which a named scheme settles."""
    before = model.quantization
    if before is None or before.weight_format is not None:
        return model.assumptions
    return tuple(note for note in model.assumptions if not note.startswith(f"how {before.method} stores weights"))


def _added(assumptions: Iterable[str], note: str) -> tuple[str, ...]:
    kept = tuple(assumptions)
    return kept if not note or note in kept else (*kept, note)


@cache
def _document() -> dict[str, Any]:
    return read_data("models/schemes.toml")


def _hybrid(row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {
        "mixer_format": catalogue.get(row["format"]),
        "mixer_roles": tuple(row["roles"]),
        "head_in_hybrids": row.get("head", False),
    }


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
            kept_beside_states_or_latents=tuple(row.get("kept_beside_states_or_latents", ())),
            only=tuple(row.get("only", ())),
            mtp=row.get("mtp", False),
            ends=row.get("ends", False),
            names=tuple(row["names"]),
            source=row["source"],
            **_hybrid(row.get("dense_hybrid")),
        )
        for name, row in document["schemes"].items()
    ]
    schemes += _of_formats({scheme.format.name for scheme in schemes}, {n for s in schemes for n in (s.name, *s.names)})
    schemes += [
        Scheme(
            name=f"gguf-{mix.name}",
            method="gguf",
            format=catalogue.get(mix.type),
            mtp=True,
            names=(mix.name, *mix.names),
            source=gguf_mixes.source(),
            mix=mix,
        )
        for mix in gguf_mixes.mixes()
    ]
    schemes += [
        Scheme(name=name, method="none", format=catalogue.get(name), quantises=False, names=tuple(names))
        for name, names in document["unquantised"].items()
    ]
    return tuple(replace(scheme, order=order) for order, scheme in enumerate(schemes))


def _of_formats(listed: set[str], taken: set[str]) -> list[Scheme]:
    """A scheme for every scaled format of the catalogue that none of the file's stores: all linear layers, nothing else.

    Activations are what its matrix units meet it with; formats without units are weight-only.
    """
    found = []
    for name in catalogue.names():
        fmt = catalogue.get(name)
        if fmt.granularity == "none" or fmt.kind == "packed" or name in listed:
            continue
        own = units(fmt.hardware)
        met = own.activations if own is not None else 16
        found.append(
            Scheme(
                name=name,
                method=_document()["of_formats"]["methods"].get(fmt.hardware, "compressed-tensors"),
                format=fmt,
                activation_bits=met if met < 16 else None,
                names=tuple(alias for alias in fmt.aliases if alias not in taken),
                source=_document()["of_formats"]["source"],
            )
        )
    return found


@cache
def _by_name() -> dict[str, Scheme]:
    known: dict[str, Scheme] = {}
    for scheme in _schemes():
        for name in (scheme.name, *scheme.names):
            if known.setdefault(name.lower(), scheme) is not scheme:
                raise InputError(f"two quantization schemes are called {name!r} in schemes.toml")
    for scheme in _schemes():  # a scheme is also known by its format, the first where several store it
        if scheme.quantises and scheme.mix is None:
            known.setdefault(scheme.format.name, scheme)
    return known


@cache
def _by_words() -> dict[str, Scheme]:
    return {name.replace("_", "-").replace(".", "-"): scheme for name, scheme in _by_name().items()}
