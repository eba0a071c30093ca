"""Text to token ids: what a tokenizer beside the weights can read without a library, else the library, else ids as given."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_bytes, read_text
from trilemma.precision.weights_files import WeightFiles

Ids = NDArray[np.int64]

_MOST_TEXT = 64 * 2**20
_MOST_TOKENIZER = 64 * 2**20


def read_ids(data: str | Path, weights: WeightFiles) -> Ids:
    """Token ids (tokens,) of ``data``: a UTF-8 text file, or ``*.npy`` with whole numbers.

    The tokenizer is looked for beside the weights: tokenizer.json (a byte-level one without merges is read here, others by
    the package ``tokenizers``) or llama2.c's ``tok*.bin``. Raises `InputError` for empty data, ids beyond the vocabulary
    and tokenizers that cannot be read.
    """
    path = Path(data)
    ids = _stored_ids(path) if path.suffix == ".npy" else tokenizer_of(weights)(_text(path))
    if ids.size < 2:
        raise InputError(f"{shorten(str(data))} gives {ids.size} tokens; nothing can be predicted from fewer than 2")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= weights.shape.vocab:
        raise InputError(
            f"{shorten(str(data))} holds token {low if low < 0 else high}, the vocabulary has {weights.shape.vocab:,}; use the"
            " tokenizer of this model"
        )
    return ids


def tokenizer_of(weights: WeightFiles) -> Callable[[str], Ids]:
    """The function from text to ids that belongs to ``weights``. Raises `InputError` where none is beside them."""
    file = weights.folder / "tokenizer.json"
    if file.is_file():
        return _from_json(file)
    listed = sorted(weights.folder.glob("tok*.bin"))[:1]
    if listed:
        return _from_llama2c(listed[0], weights.shape.vocab)
    raise InputError(
        f"no tokenizer.json or tok*.bin lies beside {shorten(weights.source)}; put one there or give token ids as *.npy"
    )


def _text(path: Path) -> str:
    text = read_text(path, most_bytes=_MOST_TEXT, give="give a plain text file or token ids as *.npy")
    if not text.strip():
        raise InputError(f"{shorten(str(path))} is empty; give some text")
    return text


def _stored_ids(path: Path) -> Ids:
    if not path.is_file():
        raise InputError(f"{shorten(str(path))} is no file; give an array of token ids as numpy.save writes it")
    try:
        ids = np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise InputError(f"{shorten(str(path))} is no array of token ids: {shorten(str(error))}") from None
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu" or ids.size > 2**27:
        raise InputError(f"{shorten(str(path))} holds no array of at most 134,217,728 whole numbers")
    return np.asarray(ids, dtype=np.int64).reshape(-1)


def _from_json(path: Path) -> Callable[[str], Ids]:
    raw = read_bytes(path, most_bytes=_MOST_TOKENIZER)
    table = _byte_table(raw)
    if table is not None:
        return lambda text: table[np.frombuffer(text.encode("utf-8"), np.uint8)]
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        raise InputError(
            f"{shorten(str(path))} needs the package tokenizers; install it or give token ids as *.npy"
        ) from None
    try:
        known = library.Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:
        raise InputError(f"{shorten(str(path))} is no tokenizer: {shorten(str(error))}") from None
    return lambda text: np.array(known.encode(text).ids, dtype=np.int64)


def _byte_table(raw: bytes) -> Ids | None:
    """Byte → id of a byte-level tokenizer without merges, None for any other."""
    try:
        document = json.loads(raw)
        model = document["model"]
        if model["type"] != "BPE" or model["merges"] or document["pre_tokenizer"]["type"] != "ByteLevel":
            return None
        return np.array([model["vocab"][sign] for sign in byte_signs()], dtype=np.int64)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def byte_signs() -> list[str]:
    """The printable sign that stands for each byte in byte-level tokenizers (openai/gpt-2 src/encoder.py)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


def _from_llama2c(path: Path, vocab: int) -> Callable[[str], Ids]:
    """karpathy/llama2.c tokenizer.py: int32 longest, then per token FP32 score, int32 length and the bytes."""
    raw = read_bytes(path, most_bytes=_MOST_TOKENIZER)
    pieces: list[bytes] = []
    scores: list[float] = []
    at = 4
    for _ in range(vocab):
        if at + 8 > len(raw):
            raise InputError(
                f"{shorten(str(path))} lists {len(pieces):,} tokens, the model has {vocab:,}; fetch it again"
            )
        score, length = struct.unpack_from("<fi", raw, at)
        if not 0 <= length <= len(raw) - at - 8:
            raise InputError(f"{shorten(str(path))} is cut off or lies about a length; fetch it again")
        pieces.append(raw[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    ranks = {piece: rank for rank, piece in reversed(list(enumerate(pieces)))}
    return lambda text: _merged(text, ranks, pieces, scores)


def _merged(text: str, ranks: dict[bytes, int], pieces: list[bytes], scores: list[float]) -> Ids:
    """Byte-pair merging by score, word by word: a text starts with token 1 and words keep the blank before them."""
    found = [1]
    for line in text.splitlines(keepends=True):
        for word in line.replace(" ", "\0 ").split("\0"):
            if word:
                found += _word(word if found[-1] != 1 or word[0] == " " else " " + word, ranks, pieces, scores)
    return np.array(found, dtype=np.int64)


def _word(word: str, ranks: dict[bytes, int], pieces: list[bytes], scores: list[float]) -> list[int]:
    ids: list[int] = []
    for sign in word:
        coded = sign.encode("utf-8")
        ids += (
            [ranks[coded]] if coded in ranks else [byte + 3 for byte in coded]
        )  # byte tokens follow three special ones
    while len(ids) > 1:
        merged = [ranks.get(pieces[left] + pieces[right], -1) for left, right in pairwise(ids)]
        best = max(range(len(merged)), key=lambda at: scores[merged[at]] if merged[at] >= 0 else -np.inf)
        if merged[best] < 0:
            break
        ids[best : best + 2] = [merged[best]]
    return ids
