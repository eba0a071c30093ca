"""Names of Ollama's library: which checkpoint and which mix of number formats a tag holds."""

from __future__ import annotations

import re
from typing import Any

from trilemma.data.files import read_data
from trilemma.models.naming import spell

_ROOTS = ("registry.ollama.ai/", "ollama.com/", "library/")


def weights_of(name: str) -> str:
    """What ``name`` of a command means as weights: its size and mix stated, as ``trilemma.models`` reads them.

    ``llama3.1`` is ``llama3.1:8b-q4_K_M``; names that state a mix, files and repositories of a hub keep theirs, a repository
    without one has the usual one too (docs: hf.co/… takes Q4_K_M).
    """
    bare = _without_root(name)
    if is_file(bare):
        return bare
    library, row = read_data("engines/ollama.toml")["library"], _row(bare)
    if ":" not in bare or bare.endswith(":latest"):
        size = row.get("latest")
        bare = bare.removesuffix(":latest") + (f":{size}" if size else "")
    mix = "q4_0" if bare.lower().endswith("-qat") else row.get("mix", library["mix"])
    spelling = spell(bare)
    if not mix or spelling.scheme is not None or "fp16" in bare.lower() or "bf16" in bare.lower():
        return bare
    return f"{bare}-{mix}" if ":" in bare else f"{bare}:{mix}"


def spelled_there(name: str) -> str | None:
    """``llama-3.1-8b`` of a catalogue as the library spells it, ``llama3.1:8b``; None where it has no such name."""
    rows = sorted(read_data("engines/ollama.toml")["library"]["rows"], key=lambda row: -len(row["name"]))
    for row in rows:
        letters = "-?".join(re.escape(letter) for letter in row["name"].replace("-", ""))
        found = re.fullmatch(rf"{letters}(?:-(\d.{{0,80}}))?", name[:200].lower())
        if found is not None:
            return f"{row['name']}:{found[1] or 'latest'}"
    return None


def is_file(name: str) -> bool:
    """Whether ``name`` is a file or folder of weights and no name of a library."""
    return name.startswith((".", "/", "~")) or name.lower().endswith((".gguf", ".safetensors"))


def tag_of(weights: str) -> str:
    """The name by which the library has ``weights``: a mix that its tag holds anyway is left out."""
    head, mark, _ = weights.rpartition("-")
    return head if mark and head and weights_of(head) == weights else weights


def _without_root(name: str) -> str:
    for root in _ROOTS:
        name = name.removeprefix(root)
    return name


def _row(name: str) -> dict[str, Any]:
    """The row of the library that a name without a namespace begins with; nothing for others."""
    if "/" in name:
        return {}
    own, rows = name.partition(":")[0].lower(), read_data("engines/ollama.toml")["library"]["rows"]
    return next((row for row in rows if own == row["name"]), {})
