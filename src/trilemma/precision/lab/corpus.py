"""The text that the lab trains on: generated from a small grammar, the same on every machine, or a file of the user's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text

#: Character codes are padded to a multiple of this, as real vocabularies are padded for tensor parallelism.
_VOCABULARY_MULTIPLE = 64
_SYMBOL = re.compile(r"<(\w+)>")
_MOST_BYTES = 20_000_000
_LEAST_CHARACTERS = 4096
#: The last tenth is never trained on.
_HELD_OUT = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Text as character codes, cut into a part to train on and one to judge by; ``source`` says where it is from."""

    training: NDArray[np.int64]
    held_out: NDArray[np.int64]
    vocabulary: int
    source: str


@cache
def generated_corpus() -> Corpus:
    """The text of the grammar in ``data/precision/lab_corpus.toml``."""
    text, source = generate_text()
    return _encode(text, source=source)


def generate_text() -> tuple[str, str]:
    """The generated text and its source. Only `Random.random` is used, whose sequence Python guarantees for a seed."""
    document = read_data("precision/lab_corpus.toml")
    rules: dict[str, list[str]] = document["rules"]
    weights = {name: _cumulative(len(alternatives)) for name, alternatives in rules.items()}
    random = Random(document["seed"])

    def expand(symbol: str) -> str:
        point = random.random()
        rank = next(at for at, edge in enumerate(weights[symbol]) if point < edge)
        return _SYMBOL.sub(lambda match: expand(match[1]), rules[symbol][rank])

    parts: list[str] = []
    length = 0
    while length < document["characters"]:
        parts.append(expand(document["start"]))
        length += len(parts[-1])
    return "".join(parts), f"generated: {document['source']}"


def read_corpus(path: str | Path) -> Corpus:
    """A UTF-8 text file of at most 20 MB, by characters. Raises `InputError` where it cannot be used."""
    text = read_text(path, most_bytes=_MOST_BYTES)
    if len(text) < _LEAST_CHARACTERS:
        raise InputError(
            f"{shorten(str(path))} has {len(text):,} characters; the lab needs {_LEAST_CHARACTERS:,} or more"
        )
    return _encode(text, source=Path(path).name)


def _cumulative(count: int) -> list[float]:
    weights = [1 / (rank + 1) for rank in range(count)]
    edges = [sum(weights[: at + 1]) / sum(weights) for at in range(count)]
    return [*edges[:-1], 1.0]


def _encode(text: str, *, source: str) -> Corpus:
    signs = sorted(set(text))
    if len(signs) > 1024:
        raise InputError(f"{source} uses {len(signs):,} different characters; the lab's tiny model takes 1024 at most")
    codes = {sign: code for code, sign in enumerate(signs)}
    encoded = np.array([codes[sign] for sign in text], dtype=np.int64)
    cut = int(len(encoded) * (1 - _HELD_OUT))
    vocabulary = -(-len(signs) // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    return Corpus(training=encoded[:cut], held_out=encoded[cut:], vocabulary=vocabulary, source=source)
