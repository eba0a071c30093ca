"""Files that a command names, found where the script or manifest around it puts them: beside it, in its ConfigMap, or written
by the command before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trilemma.outside_files import read_text

_SUFFIXES = (".yaml", ".yml", ".json")
#: Files that are found beside a script by their whole name.
_NAMES = ("Modelfile",)
#: How a line of ours writes a file that its command needs: lines as they are, no escape in them read.
_PRINTS = ("printf", "%s\\n")


class HeldFile(str):
    """A path on another machine whose ``text`` is known here."""

    __slots__ = ("text",)
    text: str

    def __str__(self) -> str:
        """Itself: words are made strings again on their way to the reader."""
        return self


def held(name: str, text: str) -> HeldFile:
    """The file ``name`` that says ``text``."""
    found = HeldFile(name)
    found.text = text
    return found


def printed(words: Sequence[str]) -> str | None:
    """What a command of ``printf '%s\\n' LINE …`` prints; None for any other."""
    return "".join(f"{line}\n" for line in words[2:]) if tuple(words[:2]) == _PRINTS else None


def line_of(commands: Sequence[Sequence[str]]) -> str:
    """Commands as one line of a shell, each after the last has ended well; files whose text they hold are written first."""
    parts = []
    for words in commands:
        files = [word for word in words if isinstance(word, HeldFile)]
        parts += [f"{shlex.join([*_PRINTS, *file.text.splitlines()])} > {shlex.quote(file)}" for file in files]
        parts.append(shlex.join(words))
    return " && ".join(parts)


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
    return held(word, text)


def _found(word: str, folder: Path) -> str:
    named = word.endswith(_SUFFIXES) or PurePosixPath(word).name in _NAMES
    if isinstance(word, HeldFile) or not named or len(word) > 4096 or word.startswith("-"):
        return word
    try:
        near = folder / PurePosixPath(word).name
        return str(near) if not Path(word).exists() and near.is_file() else word
    except (OSError, ValueError):
        return word
