"""What a decoder layer is, as far as its saved tensors depend on it, and which layers are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trilemma.models.architecture import ExpertFfn, Ffn, Model, Tensor
from trilemma.models.attention import Mixer

#: Roles whose products share the output of a layer's first norm as input, and of its second.
_MIXER_INPUTS = (
    "attention.q", "attention.k", "attention.v", "attention.gate", "mla.q", "mla.q_a", "mla.kv_a", "recurrent.in",
    "indexer.k", "compressor",
)  # fmt: skip
_FFN_INPUTS = ("ffn.gate", "ffn.up", "router", "shared.gate", "shared.up", "latent.down")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFacts:
    """One kind of decoder layer. ``norms`` are those of the hidden state; ``layer_norm`` says that they have biases."""

    hidden: int
    mixer: Mixer | None
    ffn: Ffn | None
    norms: int
    layer_norm: bool
    qk_norm: bool
    mixer_roles: tuple[str, ...]
    ffn_roles: tuple[str, ...]


def layer_facts(model: Model, part_tensors: Sequence[Tensor], mixer: Mixer | None, ffn: Ffn | None) -> LayerFacts:
    """Facts of a layer with these halves and tensors."""
    names = [tensor.name for tensor in part_tensors]
    norms = [
        tensor for tensor in part_tensors
        if tensor.role == "norm" and tensor.shape == (model.hidden,) and tensor.name.endswith(".weight")
    ]  # fmt: skip
    inner = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm", "q_ln", "k_ln")
    halves = (mixer is not None) + (ffn is not None)
    outer = [one for one in norms if not any(f".{word}." in one.name for word in inner)]
    return LayerFacts(
        hidden=model.hidden,
        mixer=mixer,
        ffn=ffn,
        norms=len(outer) or halves,
        layer_norm=any(one.name.removesuffix("weight") + "bias" in names for one in outer),
        qk_norm=any(".q_norm." in name or ".q_layernorm." in name for name in names),
        mixer_roles=_present(part_tensors, _MIXER_INPUTS),
        ffn_roles=("router", *_present(part_tensors, _FFN_INPUTS))
        if isinstance(ffn, ExpertFfn)
        else _present(part_tensors, _FFN_INPUTS),
    )


def _present(tensors: Sequence[Tensor], roles: Sequence[str]) -> tuple[str, ...]:
    there = {tensor.role for tensor in tensors}
    return tuple(role for role in roles if role in there)


def kinds(model: Model) -> tuple[tuple[LayerFacts, ...], tuple[int, ...]]:
    """Distinct kinds of decoder layers in order of first use, and the kind of every layer."""
    by_layer: dict[int, list[Tensor]] = {}
    for tensor in model.of_part("layers"):
        if tensor.layer is not None:
            by_layer.setdefault(tensor.layer, []).append(tensor)
    found: dict[tuple[object, ...], int] = {}
    facts: list[LayerFacts] = []
    order: list[int] = []
    for layer in model.layers:
        tensors = by_layer.get(layer.index, [])
        key = (layer.mixer, layer.ffn, _fingerprint(tensors))
        if key not in found:
            found[key] = len(facts)
            facts.append(layer_facts(model, tensors, layer.mixer, layer.ffn))
        order.append(found[key])
    return tuple(facts), tuple(order)


def _fingerprint(tensors: Sequence[Tensor]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = {}
    for tensor in tensors:
        sums[tensor.role] = sums.get(tensor.role, 0) + tensor.elements
    return tuple(sorted(sums.items()))


def tensors_of_kind(model: Model, order: Sequence[int]) -> Mapping[int, tuple[Tensor, ...]]:
    """Kind → the tensors of its first layer; ``order`` is the kind of every layer, as `kinds` tells it."""
    first = {kind: model.layers[order.index(kind)].index for kind in set(order)}
    return {
        kind: tuple(tensor for tensor in model.of_part("layers") if tensor.layer == index)
        for kind, index in first.items()
    }
