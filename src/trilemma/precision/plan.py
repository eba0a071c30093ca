"""A precision plan: a number format for every tensor of a model by role, for activations, cache and training state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model, Quantization, Tensor
from trilemma.models.parameters import count, weight_bytes
from trilemma.models.quantized import find_scheme, requantize
from trilemma.models.quantized.gguf_mixes import fallbacks
from trilemma.precision.lifetimes import LIFETIMES, checked_cache, checked_lifetimes
from trilemma.precision.patterns import OWN, PrecisionGroup, PrecisionRule, groups_of, is_matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedGroup:
    """A group with its formats. ``weights`` and ``activations`` are rows of the catalogue; ``bytes`` those of the weights."""

    group: PrecisionGroup
    weights: Format
    activations: Format
    bytes: int

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(tensor.name.removesuffix(".weight") for tensor in self.group.tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionPlan:
    """A number format for everything: ``model`` is the model with every tensor stored as planned.

    ``kv_cache`` is "auto" (what the checkpoint asks for, else the activations' format) or a format. ``lifetimes`` are
    formats of accumulation, communication, gradients, master weights and moments ("" where there are none).
    ``checkpoint_scheme`` is the scheme that ``fit --precision`` knows the plan by; "" for mixtures of a plan's own.
    """

    name: str
    model: Model
    groups: tuple[PlannedGroup, ...]
    kv_cache: str = "auto"
    lifetimes: Mapping[str, str] = field(default_factory=lambda: dict(LIFETIMES))
    rules: tuple[PrecisionRule, ...] = ()
    checkpoint_scheme: str = ""
    about: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as stored, scales and zero points included, multi-token-prediction layers apart."""
        return weight_bytes(self.model)

    @property
    def bits_per_parameter(self) -> float:
        """Stored bits over the parameters of the same tensors."""
        return 8 * self.weights_bytes / count(self.model).total

    @property
    def kept_bytes(self) -> int:
        """Bytes outside the groups: norms, biases, states, tables."""
        return sum(tensor.bytes for tensor in self.model.tensors if not is_matrix(tensor) and tensor.part != "mtp")

    @property
    def training_bytes_per_parameter(self) -> float:
        """Bytes of gradients, master weights and two moments per parameter, as far as the plan states them."""
        copies = {"gradients": 1, "master_weights": 1, "moments": 2}
        stated = {name: times for name, times in copies.items() if self.lifetimes.get(name)}
        return sum(times * _named(self.lifetimes[name], self.model.dtype).bits / 8 for name, times in stated.items())


def plan_from_scheme(
    model: Model,
    scheme: str,
    *,
    name: str,
    activations: str = OWN,
    kv_cache: str = "auto",
    about: str = "",
    source: str = "",
) -> PrecisionPlan:
    """``model`` as checkpoints of a named scheme store it: the tensors and bytes are those that ``fit --precision`` counts."""
    stored = requantize(model, scheme)
    planned = [_planned(group, stored.dtype, activations) for group in groups_of(stored)]
    return PrecisionPlan(
        name=name,
        model=stored,
        groups=tuple(planned),
        kv_cache=kv_cache,
        rules=rules_of(planned, stored.dtype),
        checkpoint_scheme=find_scheme(scheme).name,
        about=about,
        source=source,
    )


def plan_as_published(model: Model, *, name: str = "as-published") -> PrecisionPlan:
    """``model`` as its files store it; activations in the format that its quantisation states, by bits."""
    own = model.quantization
    bits = own.activation_bits if own else None
    planned = [_planned(group, model.dtype, OWN) for group in groups_of(model)]
    if bits == 8:
        planned = [
            replace(one, activations=catalogue.get("int8" if one.weights.kind == "int" else "fp8_e4m3"))
            if one.weights.bits == 8 else one
            for one in planned
        ]  # fmt: skip
    return PrecisionPlan(
        name=name, model=model, groups=tuple(planned), rules=rules_of(planned, model.dtype), about="as published"
    )


def plan_from_rules(
    model: Model,
    rules: Sequence[PrecisionRule],
    *,
    name: str,
    kv_cache: str = "auto",
    lifetimes: Mapping[str, str] | None = None,
    about: str = "",
    source: str = "",
) -> PrecisionPlan:
    """``model`` with every tensor in the format of the first rule that covers it.

    Raises `InputError` for tensors that no rule covers, for formats that cannot hold a tensor (vectors are never
    quantised, GGUF blocks need whole rows) and for fused projections with different formats.
    """
    tensors: list[Tensor] = []
    activations: dict[str, str] = {}
    left: list[str] = []
    instead: Counter[tuple[str, str]] = Counter()
    for tensor in model.tensors:
        rule = next((rule for rule in rules if rule.covers(tensor, model)), None)
        if rule is None:
            left.append(tensor.name)
            continue
        activations[tensor.name] = rule.activations
        ruled = _as_ruled(tensor, rule, model)
        tensors.append(ruled)
        if rule.weights not in (OWN, ruled.format.name) and is_matrix(ruled):
            instead[rule.weights, ruled.format.name] += 1
    if left:
        raise InputError(
            f"plan {shorten(name)!r} assigns no format to {len(left):,} of {len(model.tensors):,} tensors, such as"
            f' {", ".join(left[:3])}; add rules for them, or [[rules]] roles = ["*"], weights = "{OWN}" last'
        )
    stored = replace(model, tensors=tuple(tensors))
    planned = []
    for group in groups_of(stored):
        inputs = {activations[tensor.name] for tensor in group.tensors}
        if len(inputs) > 1:
            raise _torn(group, "activation formats", inputs)
        planned.append(_planned(group, model.dtype, inputs.pop()))
    return PrecisionPlan(
        name=name,
        model=replace(stored, quantization=_quantization(planned, model)),
        groups=tuple(planned),
        kv_cache=checked_cache(kv_cache),
        lifetimes=checked_lifetimes(lifetimes or {}),
        rules=tuple(rules),
        about=about,
        source=source,
        notes=tuple(
            f"{times:,} matrices have rows that are no whole blocks of {asked} and take {given}, as llama.cpp does"
            for (asked, given), times in instead.items()
            if catalogue.get(asked).kind == "packed"
        ),
    )


def plan_from_choice(model: Model, choice: Mapping[str, str], *, name: str, source: str = "") -> PrecisionPlan:
    """``model`` with each group of ``choice`` (group name → format) in its format and everything else unquantised.

    Raises `InputError` for groups that the model does not have.
    """
    known = {group.name: group for group in groups_of(model)}
    unknown = sorted(set(choice) - set(known))
    if unknown:
        raise InputError(
            f"{len(unknown)} groups such as {shorten(unknown[0])!r} are not in {model.name}, whose groups are"
            f" {', '.join(list(known)[:4])} …; measure this model's own weights"
        )
    planned = [
        _planned(_stored(group, choice.get(group.name, OWN), model.dtype), model.dtype, OWN) for group in known.values()
    ]
    rules = (*rules_of(planned, model.dtype), PrecisionRule(roles=("*",), weights=OWN))
    return plan_from_rules(model, rules, name=name, source=source)


def rules_of(planned: Sequence[PlannedGroup], dtype: Format) -> tuple[PrecisionRule, ...]:
    """Rules by module that give the groups their formats again: one for each pair of formats, unquantised groups left out."""
    by_formats: dict[tuple[str, str], list[str]] = {}
    for one in planned:
        if one.weights != dtype:
            activations = OWN if one.activations == dtype else one.activations.name
            by_formats.setdefault((one.weights.name, activations), []).extend(one.modules)
    return tuple(
        PrecisionRule(modules=tuple(modules), weights=weights, activations=activations)
        for (weights, activations), modules in by_formats.items()
    )


def _named(name: str, dtype: Format) -> Format:
    return dtype if name == OWN else catalogue.get(name)


def _as_ruled(tensor: Tensor, rule: PrecisionRule, model: Model) -> Tensor:
    wanted = _named(rule.weights, model.dtype)
    if rule.weights == OWN:
        plain = (
            tensor.quantizable or tensor.format.granularity != "none" or tensor.format.kind in ("packed", "codebook")
        )
        wanted = model.dtype if plain else tensor.format
    elif not is_matrix(tensor) and (wanted.bits < 16 or wanted.granularity != "none"):
        if tensor.role not in rule.roles:
            wanted = tensor.format  # a broad rule means matrices
        else:
            raise InputError(
                f"{tensor.name} ({tensor.role}) cannot be stored as {wanted.name}: engines hold vectors and states in 16 or"
                f' 32 bits; give the role "{tensor.role}" weights = "{OWN}"'
            )
    return _held(tensor, wanted)


def _held(tensor: Tensor, wanted: Format) -> Tensor:
    if wanted.special == "scale" or (wanted.kind == "int" and wanted.granularity == "none"):
        raise InputError(
            f"{wanted.name} is no format of weights; use one with scales, such as int8_channel or int4_g128"
        )
    if wanted.kind == "float" and wanted.bits < 16 and wanted.granularity == "none":
        raise InputError(
            f"{wanted.name} has no scale; weights need one: use {wanted.name.partition('_')[0]}_channel or such"
        )
    if wanted.kind == "packed" and wanted.block_bytes and tensor.shape[-1] % wanted.group:
        smaller = fallbacks().get(wanted.name)
        if smaller is None:
            raise InputError(
                f"{tensor.name} has rows of {tensor.shape[-1]}, which are no whole blocks of {wanted.group} of {wanted.name};"
                f' give it another format, or "{OWN}"'
            )
        return _held(tensor, catalogue.get(smaller))
    return tensor if wanted == tensor.format else replace(tensor, format=wanted)


def _stored(group: PrecisionGroup, fmt: str, dtype: Format) -> PrecisionGroup:
    wanted = _named(fmt, dtype)
    return replace(group, tensors=tuple(_held(tensor, wanted) for tensor in group.tensors))


def _planned(group: PrecisionGroup, dtype: Format, activations: str) -> PlannedGroup:
    formats = {tensor.format.name: tensor.format for tensor in group.tensors}
    if len(formats) > 1 and any(fmt != dtype and fmt.kind != "packed" for fmt in formats.values()):
        raise _torn(group, "formats", formats)
    # GGUF engines fuse nothing: a value projection may be wider than its query. The widest stands for the group.
    stored = max(formats.values(), key=lambda fmt: fmt.effective_bits)
    quantised = stored != dtype
    return PlannedGroup(
        group=group,
        weights=stored,
        activations=_named(activations, dtype) if quantised else dtype,
        bytes=sum(tensor.bytes for tensor in group.tensors),
    )


def _torn(group: PrecisionGroup, what: str, found: Mapping[str, Format] | set[str]) -> InputError:
    names = ", ".join(tensor.name for tensor in group.tensors[:3])
    return InputError(
        f"{names} get different {what} ({', '.join(sorted(found))}), but engines fuse them into one product; give them one"
    )


def _quantization(planned: Sequence[PlannedGroup], model: Model) -> Quantization | None:
    formats: dict[str, tuple[Format, list[str]]] = {}
    for one in planned:
        if one.weights != model.dtype:
            formats.setdefault(one.weights.name, (one.weights, []))[1].extend(one.modules)
    if not formats:
        return None
    largest = max(formats.values(), key=lambda item: len(item[1]))[0]
    kinds = {fmt.kind for fmt, _ in formats.values()}
    method = "gguf" if "packed" in kinds else "bitsandbytes" if "codebook" in kinds else "compressed-tensors"
    inputs = {one.activations.bits for one in planned if one.activations != model.dtype}
    return Quantization(
        method=method,
        weight_format=largest,
        activation_bits=int(min(inputs)) if inputs else None,
        layer_formats=tuple((fmt, tuple(modules)) for fmt, modules in formats.values()),
        listed_only=True,
    )
