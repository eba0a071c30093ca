"""Small weight files for tests, written by the formats' own rules."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

BITS = {"F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "U8": 8, "I32": 32, "I64": 64}
GGUF_BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 12: (256, 144), 14: (256, 210), 30: (1, 2)}


def safetensors_header(tensors: Mapping[str, tuple[str, Sequence[int]]]) -> tuple[bytes, int]:
    """Header bytes with their length in front, and how many bytes of data follow."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text, end


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, Sequence[int]]]) -> None:
    """A safetensors file whose data is a hole in the file system: it takes no room however large it claims to be."""
    header, size = safetensors_header(tensors)
    with path.open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + size)


def gguf_bytes(metadata: Mapping[str, object], tensors: Mapping[str, tuple[int, Sequence[int]]]) -> tuple[bytes, int]:
    """A GGUF 3 header padded to 32 bytes, and how many bytes of data follow. Shapes are (rows, columns) as elsewhere."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts.append(_text(key) + _value(value))
    offset = 0
    for name, (kind, shape) in tensors.items():
        group, width = GGUF_BLOCKS[kind]
        size = math.prod(shape) // group * width
        parts.append(_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape)))
        parts.append(struct.pack("<IQ", kind, offset))
        offset += -(-size // 32) * 32
    raw = b"".join(parts)
    return raw + bytes(-len(raw) % 32), offset


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, tuple[int, Sequence[int]]]) -> None:
    raw, size = gguf_bytes(metadata, tensors)
    with path.open("wb") as stream:
        stream.write(raw)
        stream.truncate(len(raw) + size)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<IQ", 10, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list() if value and isinstance(value[0], str):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case list():
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(value)
