"""Whose checkpoint a hub id names, and what its publisher's quantised checkpoints ask for beside their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.models.architecture import Model
from trilemma.models.naming import spell, split_words


def is_of_another(name: str, ids: Sequence[str], *, makers: Sequence[str] = ()) -> bool:
    """Whether ``name`` is a hub id of a publisher who has none of ``ids``, the first of which states a scheme of its own: then
    these describe a sibling, quantised by somebody else.

    The maker of the model (who has one of the hub ids ``makers``) published no such checkpoint where none is known: by its
    name beside a scheme people mean the one that is known.
    """
    org = _org(name)
    if not org or not ids or spell(ids[0]).scheme is None or org in map(_org, makers):
        return False
    return all(_org(one) != org for one in ids)


def with_cache(model: Model, name: str) -> Model:
    """``model`` with the cache format that its publisher's checkpoints of this kind ask for; as it is where none is known."""
    stored = model.quantization
    if stored is None or stored.kv_format is not None or any(mixer.is_compressed for mixer in model.mixers):
        return model
    rule = _rule(name, stored.method)
    if rule is None:
        return model
    note = f"{rule['kv_format']} cache as {rule['source']}"
    return replace(
        model,
        quantization=replace(stored, kv_format=rule["kv_format"]),
        assumptions=(*model.assumptions, note),
    )


def _rule(name: str, method: str) -> Mapping[str, Any] | None:
    if set(split_words(name)) & set(_document()["kv_word"]["words"]):
        found: Mapping[str, Any] = _document()["kv_word"]
        return found
    org = _org(name)
    return next((row for row in _document()["publisher"] if row["org"] == org and method in row["methods"]), None)


def _org(name: str) -> str:
    return name.partition("/")[0].lower() if "/" in name else ""


@cache
def _document() -> dict[str, Any]:
    return read_data("models/publishers.toml")
