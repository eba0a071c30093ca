"""A model in a file or folder of another machine: here its name is all that is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from trilemma.errors import InputError, UnknownName, shorten
from trilemma.models.architecture import Model
from trilemma.models.naming import without_url
from trilemma.models.resolve import load_model

_WEIGHTS = (".gguf", ".safetensors")
#: What a file's name says beside the model: its ending and which part of several it is.
_ENDING = re.compile(r"(?:-\d{5}-of-\d{5})?\.(?:gguf|safetensors)$", re.IGNORECASE)
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\|.*\\")
#: Folders of the hub's cache: ``models--ORG--NAME/snapshots/REVISION``.
_CACHED = re.compile(r"models--([^/\\]+?)--([^/\\]+)")


def load_from_anywhere(
    name: str, *, models_dir: str | None = None, overrides: Mapping[str, Any] | None = None
) -> tuple[Model, bool]:
    """The model that ``name`` means as a command says it, and whether it was taken by its name because its path is not here.

    Raises `InputError` for a path that is not here and whose name means no known model.
    """
    word = without_url(name)
    if not is_path(word) or _is_here(word):
        return load_model(word, models_dir=models_dir, overrides=overrides), False
    names = stated_names(word)
    for known in names:
        try:
            return load_model(known, models_dir=models_dir, overrides=overrides), True
        except UnknownName:
            continue
    raise InputError(
        f"{shorten(name)} is not here, and {shorten(names[0])!r} is no known model; give a path that exists or a hub id"
    )


def is_path(word: str) -> bool:
    """Whether a command's word for its model is a file or folder rather than a hub id."""
    return (
        word.startswith(("/", "./", "../", "~")) or word.lower().endswith(_WEIGHTS) or _WINDOWS.match(word) is not None
    )


def stated_names(word: str) -> tuple[str, ...]:
    """The names of models that a path states, likeliest first: its own, then those of the folders around it."""
    path = PureWindowsPath(word) if _WINDOWS.match(word) else PurePosixPath(word)
    own = _ENDING.sub("", path.name)
    cached = [f"{org}/{name}" for org, name in _CACHED.findall(word)]
    around = [part.replace("--", "/", 1) for part in reversed(path.parts[-3:-1]) if len(part) > 3]
    first = [own.replace("--", "/", 1)] if word.lower().endswith(_WEIGHTS) or not cached else []
    return tuple(dict.fromkeys([*first, *cached, *around])) or (own,)


def _is_here(word: str) -> bool:
    try:
        return Path(word).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False
