"""Well-known models, kept as trimmed configurations with their source, so that everything works without a network.

``data/models/index.json`` lists every entry with the hub ids and other spellings that mean it; resolving a name reads the
index and one file. An entry may build on another (``_like``) and states only what differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.digest import DATA
from trilemma.errors import InputError

_FOLDER = DATA / "models"


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogueEntry:
    """One model of the catalogue: its short name, the hub ids that share its configuration, other spellings.

    ``parameters`` is the total that the publisher states, where one is known to the last digit or two. ``chat`` is the id that
    answers chats, where the first is of the base model.
    """

    name: str
    ids: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    parameters: float | None = None
    chat: str | None = None


def names() -> tuple[str, ...]:
    """Short names in alphabetical order."""
    return tuple(entries())


@cache
def entries() -> Mapping[str, CatalogueEntry]:
    """Short name → entry."""
    document = json.loads((_FOLDER / "index.json").read_text(encoding="utf-8"))
    return {
        name: CatalogueEntry(
            name=name,
            ids=tuple(row.get("ids", ())),
            aliases=tuple(row.get("aliases", ())),
            parameters=row.get("parameters"),
            chat=row.get("chat"),
        )
        for name, row in document["models"].items()
    }


def hub_id(name: str) -> str:
    """The hub id behind a catalogue name, any other name as it is."""
    entry = entries().get(name)
    return entry.ids[0] if entry is not None and entry.ids else name


def served_id(name: str) -> str:
    """The hub id that an engine serves where a catalogue name is asked for: the one with a chat template, of equal size."""
    entry = entries().get(name)
    return entry.chat or hub_id(name) if entry is not None else name


def original(name: str) -> CatalogueEntry:
    """The entry that entry ``name`` builds on in the end: the model as its maker published it, or ``name``'s own."""
    base = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8")).get("_like")
    return original(base) if base is not None else entries()[name]


def config(name: str) -> dict[str, Any]:
    """The configuration of entry ``name`` with what it builds on, its ``_source`` and ``_as_of``.

    Raises `InputError` for a name that is no entry.
    """
    if name not in entries():
        raise InputError(f"{name!r} is no entry of the model catalogue; see trilemma models")
    own: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    base = own.pop("_like", None)
    if base is None:
        return own
    merged = config(base)
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict) and key.endswith("_config"):
            merged[key] = merged[key] | value
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
