"""Parameter counts from tensors, never from a model's name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from trilemma.models.architecture import ExpertFfn, Model, Parameters
from trilemma.models.identity import ByIdentity


def count(model: Model) -> Parameters:
    """Totals of ``model``.

    ``total`` is every tensor once (a tied output matrix is no tensor), vision towers included, MTP layers apart.
    ``active`` is what one text token passes through: all of it but the vision tower, each stack of experts at top-k of its
    experts; embedding and output matrix count whole, as DeepSeek, Moonshot and Meta state their figures (OpenAI leaves the
    embedding out and Alibaba rounds: subtract ``embedding``). Numerical tables that are no weights (hash routes) do not
    count.
    """
    shares = _active_shares(model)
    total = active = embedding = vision = mtp = 0
    for tensor in model.tensors:
        if tensor.role == "table":
            continue
        size = tensor.elements
        if tensor.part == "mtp":
            mtp += size
            continue
        total += size
        if tensor.part == "vision":
            vision += size
            continue
        if tensor.part == "embedding":
            embedding += size
        if tensor.experts and tensor.layer is not None:
            top_k, experts = shares[tensor.layer]
            size = size * top_k // experts
        active += size
    return Parameters(total=total, active=active, embedding=embedding, vision=vision, mtp=mtp)


def by_role(model: Model) -> Mapping[str, tuple[int, int]]:
    """Role → (elements, bytes as stored), parts with a role of their own first, in order of first use.

    Tensors of MTP layers are gathered under ``mtp``, those of the vision tower under ``vision``.
    """
    sums: dict[str, tuple[int, int]] = {}
    for tensor in model.tensors:
        role = tensor.part if tensor.part in ("mtp", "vision") else tensor.role
        elements, stored = sums.get(role, (0, 0))
        sums[role] = (elements + tensor.elements, stored + tensor.bytes)
    return sums


def weight_bytes(model: Model, *, mtp: bool = False) -> int:
    """Bytes of all tensors as stored on one device, with or without MTP layers."""
    return _weight_bytes(ByIdentity(model), mtp)


@lru_cache(maxsize=64)
def _weight_bytes(same: ByIdentity, mtp: bool) -> int:
    model = same.value
    assert isinstance(model, Model)
    return sum(tensor.bytes for tensor in model.tensors if mtp or tensor.part != "mtp")


def _active_shares(model: Model) -> dict[int, tuple[int, int]]:
    return {
        layer.index: (min(layer.ffn.top_k, layer.ffn.experts), layer.ffn.experts)
        for layer in (*model.layers, *model.mtp_layers)
        if isinstance(layer.ffn, ExpertFfn)
    }
