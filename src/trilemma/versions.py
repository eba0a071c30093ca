"""Versions of engines as numbers that compare, and the engine and framework that are meant where none is named."""

from __future__ import annotations

import re
from typing import Any

from trilemma.errors import InputError, shorten

Version = tuple[int, ...]
DEFAULT_ENGINE, DEFAULT_FRAMEWORK = "vllm", "megatron"


def parse_version(text: str, *, engine: str = "vLLM") -> Version:
    """``v0.20.2rc1.dev249+g1234`` → (0, 20, 2): the leading numbers; llama.cpp counts builds: ``b6170`` → (6170,).

    Raises `InputError` when there are none.
    """
    build = re.match(r"\s*b(\d{3,6})\b", text)
    if build is not None:
        return (int(build.group(1)),)
    if engine == "llama.cpp":
        raise InputError(f"llama.cpp version {shorten(text)!r} is not a build such as b7410")
    match = re.match(r"\s*v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    if match is None:
        raise InputError(f"{engine} version {shorten(text)!r} is not a version such as 0.19.0")
    return tuple(int(part) for part in match.groups() if part is not None)


def padded(version: Version) -> Version:
    """Three numbers, so that 0.19 and 0.19.0 compare equal."""
    return (*version, 0, 0)[:3]


def version_text(version: Version, *, engine: str = "vLLM") -> str:
    """As its engine writes it: llama.cpp counts builds."""
    return f"b{version[0]}" if engine == "llama.cpp" else ".".join(map(str, version))


def in_force(rows: list[dict[str, Any]], version: Version, *, engine: str) -> dict[str, dict[str, Any]]:
    """Of dated rows (``name``, ``since``, …) those that hold at ``version``: the last one out, else the oldest of a name."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if padded(parse_version(row["since"], engine=engine)) <= padded(version) or row["name"] not in found:
            found[row["name"]] = row
    return found
