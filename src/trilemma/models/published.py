"""Quantised checkpoints that somebody published of a model, so that advice names them instead of asking for a conversion."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.models.architecture import Model
from trilemma.models.catalogue import entries
from trilemma.models.quantized import find_scheme
from trilemma.models.quantized.schemes import Scheme
from trilemma.models.resolve import load_model

#: Methods that write a scheme beside one of its own name.
_METHODS = {"w4a16": ("compressed-tensors",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCheckpoint:
    """A checkpoint on the hub: its ``id``, and that of the model that it is ``of``; ``seen`` says where it was met in use."""

    id: str
    of: str
    seen: str


def published_as(model: Model, scheme: str) -> Model | None:
    """The checkpoint of ``model`` that is published in ``scheme``, read as its own id is; None where none is known.

    One of its own publisher comes first, then one that leaves the format of the cache open. A model that is named by its hub
    id has checkpoints of just that id, one of the catalogue those of any that share its name.
    """
    wanted, ids, folder = find_scheme(scheme), _ids(model.name), os.environ.get("TRILEMMA_MODELS")
    listed = [(_is_foreign(one), ids.index(_plain(one.of)), one) for one in checkpoints() if _plain(one.of) in ids]
    asking: tuple[bool, Model] | None = None
    for foreign, _, one in sorted(listed, key=lambda row: row[:2]):
        if asking is not None and foreign != asking[0]:
            break
        stored = _read(one.id, folder)
        own = None if stored is None else stored.quantization
        if stored is None or own is None or own.weight_format is None:
            continue
        if _is(own.method, own.weight_format.name, wanted):
            if own.kv_format is None:
                return stored
            asking = asking or (foreign, stored)
    return None if asking is None else asking[1]


def _is_foreign(one: PublishedCheckpoint) -> bool:
    return one.id.partition("/")[0] != one.of.partition("/")[0]


@cache
def checkpoints() -> tuple[PublishedCheckpoint, ...]:
    """All that are known, in the order of the data file."""
    return tuple(PublishedCheckpoint(**row) for row in read_data("published_checkpoints.toml")["checkpoint"])


@cache
def _read(name: str, folder: str | None) -> Model | None:  # noqa: ARG001 - the folder of one's own decides what a name means
    """A checkpoint of the list, read once for all schemes; None where a catalogue of one's own knows the name otherwise."""
    try:
        return load_model(name)
    except InputError:
        return None


def _ids(name: str) -> Sequence[str]:
    entry = entries().get(name)
    return [_plain(one) for one in (entry.ids if entry is not None else (name,))]


def _plain(hub_id: str) -> str:
    """A hub id without what its publisher renamed: Meta's carry the maker twice or once."""
    return hub_id.lower().replace("/meta-llama-3.1", "/llama-3.1")


def _is(method: str, weight_format: str, scheme: Scheme) -> bool:
    """Whether weights of ``method`` and ``weight_format`` are what ``scheme`` names: its format, by its method where several
    methods share one; the bare name of a kind of element ("fp8") means any blocks of it."""
    kind = scheme.format.name.partition("_")[0]
    if scheme.name == kind:
        return weight_format.partition("_")[0] == kind
    return weight_format == scheme.format.name and (
        kind != "int4" or method in (scheme.name, *_METHODS.get(scheme.name, ()))
    )
