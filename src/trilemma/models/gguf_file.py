"""GGUF: the header of one file or of a split, read within bounds.

Layout (ggml-org/ggml docs/gguf.md): magic, version, counts of tensors and of key-value pairs, the pairs, one entry per
tensor, padding, data. Every length is checked against the file before anything is read, long arrays (vocabularies) are
passed over and only counted, and no tensor data is touched.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.stored import StoredTensor
from trilemma.outside_files import opened

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_PAIRS = 65_536
_MAX_TENSORS = 1_000_000
_MAX_TEXT = 4 * 2**20
#: Arrays up to this length are kept (one entry a layer); longer ones hold vocabularies and are only counted.
_KEPT_ENTRIES = 4096
_MAX_ENTRIES = 64 * 2**20
_MAX_DIMENSIONS = 8
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHeader:
    """Metadata and tensors of one GGUF file. An array too long to keep is its length under ``<key>#count``.

    ``offsets`` are where the data of each tensor starts, in bytes from the start of the file.
    """

    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]
    offsets: tuple[int, ...] = ()


class _Reader:
    """Reads little-endian values and refuses to go beyond the end of the file."""

    def __init__(self, stream: BufferedReader, size: int, what: str) -> None:
        self.stream, self.size, self.what, self.position = stream, size, what, 0

    def refuse(self, why: str) -> InputError:
        return InputError(f"{self.what} {why}; fetch it again")

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise self.refuse("is cut off or lies about a length")
        raw = self.stream.read(count)
        if len(raw) < count:
            raise self.refuse("is cut off")
        self.position += count
        return raw

    def skip(self, count: int) -> None:
        if count > self.size - self.position:
            raise self.refuse("is cut off or lies about a length")
        self.stream.seek(count, 1)
        self.position += count

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > _MAX_TEXT:
            if length > self.size - self.position:
                raise self.refuse("is cut off or lies about a length")
            raise self.refuse(f"holds a string of {length:,} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.refuse("holds a name that is not UTF-8") from None


def read_header(path: Path) -> GgufHeader:
    """Metadata and tensors of one GGUF file, versions 2 and 3, little-endian.

    Raises `InputError` for another magic or version, lengths beyond the file, unknown tensor types and data that does not
    lie in the file or overlaps.
    """
    what = shorten(str(path))
    try:
        with opened(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            return _header(_Reader(stream, size, what))
    except OSError as error:
        raise InputError(f"{what} cannot be read: {shorten(error.strerror or str(error))}") from None


def _header(read: _Reader) -> GgufHeader:
    if read.take(4) != b"GGUF":
        raise InputError(f"{read.what} is no GGUF file; give a *.gguf of llama.cpp")
    version = read.number("I")
    if version not in (2, 3):
        raise InputError(f"{read.what} is GGUF version {version}, or big-endian; versions 2 and 3 are read: convert it")
    tensors, pairs = read.number("Q"), read.number("Q")
    if pairs > _MAX_PAIRS or tensors > _MAX_TENSORS:
        raise read.refuse(f"claims {tensors:,} tensors and {pairs:,} metadata entries")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = read.text()
        if key in metadata or f"{key}#count" in metadata:
            raise read.refuse(f"gives the key {shorten(key)!r} twice")
        value = _value(read, read.number("I"))
        metadata[f"{key}#count" if isinstance(value, _Skipped) else key] = (
            value.count if isinstance(value, _Skipped) else value
        )
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or not 0 < alignment <= 2**20:
        raise read.refuse(f"gives the alignment {shorten(repr(alignment))}")
    found = [_tensor(read) for _ in range(tensors)]
    start = -(-read.position // alignment) * alignment
    _check_data(read, found, max(read.size - start, 0))
    return GgufHeader(
        metadata=metadata,
        tensors=tuple(tensor for tensor, _ in found),
        offsets=tuple(start + offset for _, offset in found),
    )


@dataclass(frozen=True, slots=True)
class _Skipped:
    count: int


def _value(read: _Reader, kind: int) -> Any:
    if kind in _SCALARS:
        return read.number(_SCALARS[kind])
    if kind == _STRING:
        return read.text()
    if kind != _ARRAY:
        raise read.refuse(f"holds metadata of the unknown type {kind}")
    entry, count = read.number("I"), read.number("Q")
    if count > _MAX_ENTRIES or count > read.size - read.position:
        raise read.refuse(f"claims an array of {count:,} entries")
    if entry in _SCALARS:
        width = struct.calcsize(f"<{_SCALARS[entry]}")
        if count > _KEPT_ENTRIES:
            read.skip(count * width)
            return _Skipped(count)
        return list(struct.unpack(f"<{count}{_SCALARS[entry]}", read.take(count * width)))
    if entry != _STRING:
        raise read.refuse(f"holds an array of the unknown type {entry}")
    if count <= _KEPT_ENTRIES:
        return [read.text() for _ in range(count)]
    for _ in range(count):
        read.skip(read.number("Q"))
    return _Skipped(count)


def _tensor(read: _Reader) -> tuple[StoredTensor, int]:
    name = read.text()
    dimensions = read.number("I")
    if not 0 < dimensions <= _MAX_DIMENSIONS:
        raise read.refuse(f"gives {shorten(name)!r} {dimensions} dimensions")
    sizes = struct.unpack(f"<{dimensions}Q", read.take(8 * dimensions))
    kind, offset = read.number("I"), read.number("Q")
    stored = _types().get(kind)
    if stored is None:
        raise InputError(
            f"{read.what}: {shorten(name)!r} has the tensor type {kind}, which is not known; known are {_known()}"
        )
    if not all(0 < size < 2**40 for size in sizes) or math.prod(sizes) > 2**50:
        raise read.refuse(f"gives {shorten(name)!r} the shape {shorten(str(sizes))}")
    # ggml lists the contiguous dimension first, everything else in this project lists it last.
    shape = tuple(reversed(sizes))
    found = StoredTensor(name=name, shape=shape, format=stored, n_bytes=_storage(stored, shape), role=_role(name))
    return found, offset


def _storage(stored: Format, shape: tuple[int, ...]) -> int:
    rows = math.prod(shape[:-1])
    return stored.storage_bytes((rows, shape[-1]))


def _check_data(read: _Reader, found: list[tuple[StoredTensor, int]], data_bytes: int) -> None:
    end, names = 0, set()
    for tensor, offset in sorted(found, key=lambda item: item[1]):
        if tensor.name in names:
            raise read.refuse(f"lists {shorten(tensor.name)!r} twice")
        names.add(tensor.name)
        if offset < end or offset + tensor.n_bytes > data_bytes:
            raise read.refuse(f"places {shorten(tensor.name)!r} outside its data or over another tensor")
        end = offset + tensor.n_bytes


def _role(name: str) -> str | None:
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight":
        return str(_facts()["roles"].get(parts[2])) if parts[2] in _facts()["roles"] else None
    return None


def files_of(path: Path) -> list[Path]:
    """All files of the split that ``path`` is one of, or ``path`` alone. Raises `InputError` naming the first missing."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match.group(3))
    if not 0 < count <= 10_000:
        raise InputError(f"{shorten(str(path))} claims {count} files; at most 10,000 are read")
    paths = [path.with_name(f"{match.group(1)}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1)]
    for part in paths:
        if not part.is_file():
            raise InputError(f"{shorten(str(part))} is missing beside {shorten(path.name)}; fetch it too")
    return paths


def hub_name(name: str) -> str:
    """A GGUF tensor name with blocks spelled as layers, so that layer numbers are found in it."""
    fixed = {
        "token_embd.weight": "embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "output_norm.weight": "norm.weight",
    }
    return fixed.get(name) or re.sub(r"^blk\.", "layers.", name)


@cache
def _facts() -> dict[str, Any]:
    return read_data("models/gguf.toml")


@cache
def _types() -> dict[int, Format]:
    return {int(number): catalogue.get(name) for number, name in _facts()["types"].items()}


def _known() -> str:
    return ", ".join(stored.name for stored in _types().values())
