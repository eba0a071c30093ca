"""Files that a command names, found where the script or manifest around it puts them: beside it, or in its ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trilemma.commands.bounded_yaml import read_text

_SUFFIXES = (".yaml", ".yml", ".json")


class HeldFile(str):
    """A path on another machine whose ``text`` is known here."""

    __slots__ = ("text",)
    text: str

    def __str__(self) -> str:
        """Itself: words are made strings again on their way to the reader."""
        return self


def text_of(path: str) -> str:
    """What the file says. Raises `InputError`."""
    return path.text if isinstance(path, HeldFile) else read_text(Path(path))


def beside(words: Sequence[str], folder: Path) -> list[str]:
    """``words`` with paths of files that are not found from here, but by their name in the ``folder`` of the script: it
    changes there before it starts the engine, or mounts it into a container."""
    return [_found(word, folder) for word in words]


def mounted(words: Sequence[str], documents: Sequence[Any], folder: Path) -> list[str]:
    """As `beside`, for a manifest: files that lie in one of its ConfigMaps come first."""
    texts = {
        str(name): str(text)
        for document in documents
        if isinstance(document, Mapping) and document.get("kind") == "ConfigMap"
        for name, text in (document["data"] if isinstance(document.get("data"), Mapping) else {}).items()
    }
    return [_held(word, texts) or _found(word, folder) for word in words]


def _held(word: str, texts: Mapping[str, str]) -> HeldFile | None:
    text = texts.get(PurePosixPath(word).name) if word.startswith("/") and word.endswith(_SUFFIXES) else None
    if text is None:
        return None
    held = HeldFile(word)
    held.text = text
    return held


def _found(word: str, folder: Path) -> str:
    if not word.endswith(_SUFFIXES) or len(word) > 4096 or word.startswith("-"):
        return word
    try:
        near = folder / PurePosixPath(word).name
        return str(near) if not Path(word).exists() and near.is_file() else word
    except (OSError, ValueError):
        return word
