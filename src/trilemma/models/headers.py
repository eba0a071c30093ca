"""Safetensors: the header of one file, the index over many, and the exact tensors that they list.

Format: an unsigned 64-bit little-endian length, that many bytes of JSON, then the data
(huggingface/safetensors README; the reference reader refuses headers over 100 MB, holes and overlaps, and so does this).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.documents import parse_object, read_json
from trilemma.models.stored import MAX_TENSORS, StoredTensor
from trilemma.outside_files import opened

MAX_HEADER_BYTES = 100_000_000
#: An index lists every tensor; that of DeepSeek-V3 has 9 MB.
MAX_INDEX_BYTES = 64 * 2**20
_MAX_SIDE = 2**40
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
#: Names of the format catalogue for the names that safetensors uses and the catalogue does not.
_DTYPES = {
    "BOOL": "uint8", "U8": "uint8", "I8": "int8", "U16": "int16", "I16": "int16", "U32": "int32", "I32": "int32",
    "U64": "int64", "I64": "int64", "F8_E5M2": "fp8_e5m2", "F8_E4M3": "fp8_e4m3", "F8_E8M0": "e8m0", "F4": "fp4_e2m1",
    "F6_E2M3": "fp6_e2m3", "F6_E3M2": "fp6_e3m2", "F16": "fp16", "BF16": "bf16", "F32": "fp32", "F64": "fp64",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """What ``model.safetensors.index.json`` says: the shard of each tensor and the bytes of all."""

    shards: tuple[str, ...]
    tensors: int
    total_bytes: int | None


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors that one safetensors file lists.

    Raises `InputError` for a length beyond the file or the format's limit, text that is not a JSON object of tensors, and
    offsets that do not tile the data.
    """
    what = shorten(str(path))
    try:
        with opened(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > size - 8:
                raise InputError(f"{what} is cut off or no safetensors file; fetch it again")
            if length > MAX_HEADER_BYTES:
                raise InputError(f"{what} claims a header of {length:,} bytes; the format allows {MAX_HEADER_BYTES:,}")
            raw = stream.read(length)
    except OSError as error:
        raise InputError(f"{what} cannot be read: {shorten(error.strerror or str(error))}") from None
    if len(raw) < length:
        raise InputError(f"{what} is cut off; fetch it again")
    return _tensors(parse_object(raw, what=what, unique=True), data_bytes=size - 8 - length, what=what)


def _tensors(header: Mapping[str, Any], *, data_bytes: int, what: str) -> list[StoredTensor]:
    if len(header) > MAX_TENSORS:
        raise InputError(f"{what} lists {len(header):,} tensors; at most {MAX_TENSORS:,} are read")
    found: list[tuple[int, int, StoredTensor]] = []
    for name, entry in header.items():
        if name != "__metadata__":
            found.append(_tensor(name, entry, data_bytes, what))
    found.sort(key=lambda item: item[:2])
    end = 0
    for begin, stop, tensor in found:
        if begin != end:
            raise InputError(f"{what}: the data of {shorten(tensor.name)!r} overlaps or leaves a hole; fetch it again")
        end = stop
    if end != data_bytes:
        raise InputError(f"{what} lists {end:,} bytes of tensors and holds {data_bytes:,}; fetch it again")
    return [tensor for _, _, tensor in found]


def _tensor(name: str, entry: object, data_bytes: int, what: str) -> tuple[int, int, StoredTensor]:
    bad = InputError(f"{what}: the entry of {shorten(name)!r} is no tensor of this file; fetch it again")
    if not isinstance(entry, Mapping) or len(name) > 4096:
        raise bad
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2 or len(shape) > 16:
        raise bad
    if not _whole(shape, most=_MAX_SIDE) or not _whole(offsets, most=data_bytes):
        raise bad
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InputError(f"{what}: {shorten(name)!r} has the unknown dtype {shorten(repr(dtype))}; fetch it again")
    stored = _format(dtype)
    n_bytes = math.ceil(math.prod(shape) * stored.bits / 8)
    if offsets[1] - offsets[0] != n_bytes:
        raise bad
    return offsets[0], offsets[1], StoredTensor(name=name, shape=tuple(shape), format=stored, n_bytes=n_bytes)


def _whole(values: list[Any], *, most: int) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= most for item in values)


def _format(dtype: str) -> Format:
    return catalogue.get(_DTYPES[dtype])


def read_index(path: Path) -> Index:
    """The shards, the number of tensors and the total bytes of an index file.

    Raises `InputError` for shard names that are paths, maps that are none and sizes that cannot be.
    """
    what = shorten(str(path))
    document = read_json(path, limit=MAX_INDEX_BYTES)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map or len(weight_map) > MAX_TENSORS:
        raise InputError(f"{what} holds no weight_map of tensors to files; fetch it again")
    shards: dict[str, None] = {}
    for shard in weight_map.values():
        if (
            not isinstance(shard, str)
            or Path(shard).name != shard
            or not shard.endswith(".safetensors")
            or "\0" in shard
        ):
            raise InputError(
                f"{what} names the shard {shorten(repr(shard))}; shards are *.safetensors beside the index"
            )
        shards[shard] = None
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if total is not None and (
        isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 2**60 or total != int(total)
    ):
        raise InputError(f"{what} gives total_size {shorten(repr(total))}; it must be a number of bytes")
    return Index(shards=tuple(shards), tensors=len(weight_map), total_bytes=None if total is None else int(total))


def shards_of(path: Path) -> list[Path]:
    """All files of the checkpoint that ``path`` is one of: itself, or every ``-0000I-of-0000N`` beside it.

    Raises `InputError` naming the first that is missing.
    """
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match.group(3))
    if not 0 < count <= 10_000:
        raise InputError(f"{shorten(str(path))} claims {count} shards; at most 10,000 are read")
    paths = [
        path.with_name(f"{match.group(1)}-{index:05d}-of-{count:05d}.safetensors") for index in range(1, count + 1)
    ]
    for shard in paths:
        if not shard.is_file():
            raise InputError(
                f"{shorten(str(shard))} is missing beside {shorten(path.name)}; fetch it, or give the config.json"
            )
    return paths


def read_all(paths: list[Path]) -> list[StoredTensor]:
    """The tensors of several files; a name in two of them is refused."""
    found: dict[str, StoredTensor] = {}
    for path in paths:
        for tensor in read_header(path):
            if found.setdefault(tensor.name, tensor) is not tensor:
                raise InputError(
                    f"{shorten(str(path))} holds {shorten(tensor.name)!r}, which another shard has too; fetch both again"
                )
    return list(found.values())
