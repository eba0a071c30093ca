"""Which tensors a rule of a precision plan speaks of, and which of them engines fuse and must hold in one format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.models.architecture import Model, Tensor
from trilemma.models.quantized.patterns import matcher, read_patterns

#: The word for the model's unquantised format.
OWN = "own"
_MOST_RULES = 20_000
_LAYERS = re.compile(r"(-?\d{1,5})(?:-(\d{1,5}))?")
_KEYS = {"roles", "modules", "layers", "weights", "activations"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionRule:
    """One line of a precision plan: what it covers, and the formats it gives.

    A tensor is covered when it matches one of ``roles`` (where given), one of ``modules`` (where given) and one of
    ``layers`` (where given). ``weights`` and ``activations`` are names of the format catalogue, or "own".
    """

    roles: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    weights: str = OWN
    activations: str = OWN

    def covers(self, tensor: Tensor, model: Model) -> bool:
        if self.roles and not any(_has_role(tensor, word, model) for word in self.roles):
            return False
        if self.modules and not matcher(self.modules).matches(tensor.name):
            return False
        return not self.layers or any(_in_layers(tensor.layer, words, len(model.layers)) for words in self.layers)

    def to_json(self) -> dict[str, Any]:
        """The rule as a plan file states it."""
        fields = {"roles": list(self.roles), "modules": list(self.modules), "layers": list(self.layers)}
        stated = {name: value for name, value in fields.items() if value}
        return {**stated, "weights": self.weights, "activations": self.activations}


def read_rules(value: object, *, what: str) -> tuple[PrecisionRule, ...]:
    """Rules of a plan file or preset. Raises `InputError` naming the first that cannot be."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise InputError(f"{what} has no list of rules; give at least one with roles or modules, and weights")
    if len(value) > _MOST_RULES:
        raise InputError(f"{what} has {len(value):,} rules; at most {_MOST_RULES:,} are read")
    return tuple(_rule(one, f"rule {number} of {what}") for number, one in enumerate(value, 1))


def _rule(value: object, what: str) -> PrecisionRule:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} is {shorten(repr(value))}; it must be a table")
    unknown = sorted(str(key) for key in set(value) - _KEYS)
    if unknown:
        raise InputError(
            f"{what} has the unknown key {shorten(repr(unknown[0]))}; known are {', '.join(sorted(_KEYS))}"
        )
    weights, activations = value.get("weights"), value.get("activations", OWN)
    if not isinstance(weights, str) or not isinstance(activations, str):
        raise InputError(f"{what} gives no format of weights; give a name such as int4_g128, or {OWN}")
    rule = PrecisionRule(
        roles=read_patterns(value.get("roles"), field=f"roles of {what}"),
        modules=read_patterns(value.get("modules"), field=f"modules of {what}"),
        layers=read_patterns(value.get("layers"), field=f"layers of {what}"),
        weights=weights,
        activations=activations,
    )
    if not rule.roles and not rule.modules:
        raise InputError(f'{what} says neither roles nor modules; roles = ["*"] covers everything')
    matcher(rule.modules)
    for words in rule.layers:
        _in_layers(0, words, 1)
    return rule


def _has_role(tensor: Tensor, word: str, model: Model) -> bool:
    if word == "*":
        return True
    if word == "matrix":
        return tensor.quantizable
    if word == "tied":
        return tensor.role == "embedding" and model.tied_embeddings
    return word in (tensor.role, tensor.role.partition(".")[0], tensor.part) and not (
        # the final norm lives in the part "head" without being the output matrix
        word == tensor.part == "head" and tensor.role != "head"
    )


def _in_layers(layer: int | None, words: str, depth: int) -> bool:
    if words == "more-bits":  # ggml-org/llama.cpp src/llama-quant.cpp use_more_bits
        eighth = depth // 8
        return layer is not None and (layer < eighth or layer >= 7 * depth // 8 or (layer - eighth) % 3 == 2)
    if words == "first-eighth":
        return layer is not None and layer < depth // 8
    match = _LAYERS.fullmatch(words)
    if match is None or (match[2] and match[1].startswith("-")):
        raise InputError(f"layers {shorten(words)!r} are not known; give 3, -1, 0-7, more-bits or first-eighth")
    first = int(match[1]) + (depth if match[1].startswith("-") else 0)
    last = int(match[2]) if match[2] else first
    return layer is not None and first <= layer <= last


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionGroup:
    """Matrices of one layer that share one decision: what engines fuse, else the matrices of one role."""

    name: str
    role: str
    layer: int | None
    tensors: tuple[Tensor, ...]

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)


def groups_of(model: Model) -> tuple[PrecisionGroup, ...]:
    """Every matrix of ``model`` in groups, in the order of its layers: embeddings, projections, experts, head.

    Vectors (norms, biases), convolutions, states and tables belong to no group: nothing quantises them.
    """
    found: dict[tuple[str, int | None, str], list[Tensor]] = {}
    for tensor in model.tensors:
        if is_matrix(tensor):
            role = _fused().get(tensor.role, tensor.role)
            found.setdefault((tensor.part, tensor.layer, role), []).append(tensor)
    return tuple(
        PrecisionGroup(name=_name(part, layer, role), role=role, layer=layer, tensors=tuple(tensors))
        for (part, layer, role), tensors in found.items()
    )


def is_matrix(tensor: Tensor) -> bool:
    """Whether a plan may store ``tensor`` in fewer bits: a matrix that is multiplied, or an embedding looked up."""
    return len(tensor.shape) > 1 and (tensor.quantizable or tensor.role in ("embedding", "other"))


def _name(part: str, layer: int | None, role: str) -> str:
    where = "" if part in (role, "layers", "head", "embedding") else f"{part}."
    return f"{where}{layer}.{role}" if layer is not None else f"{where}{role}"


@cache
def _fused() -> Mapping[str, str]:
    document = read_data("precision/presets.toml")
    return {role: row["group"] for row in document["fused"] for role in row["roles"]}
