"""How ggml packs bits: halves of 16 bits, nibbles, high-bit planes and runs of 32."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.formats.elements import Floats

Blocks: TypeAlias = NDArray[np.uint8]


def half_bytes(values: NDArray[Any]) -> Blocks:
    """The bytes of FP16 values, (blocks, columns) to (blocks, 2 · columns). Raises `InputError` beyond FP16."""
    if np.abs(values).max(initial=0) > 65504:
        raise InputError(
            "a block scale is above 65,504, the largest FP16; rescale the tensor before quantising to GGUF"
        )
    stored: Blocks = np.ascontiguousarray(values, np.float16).view(np.uint8)
    return stored.reshape(len(values), -1)


def read_half(blocks: Blocks, at: int) -> Floats:
    """The FP16 at byte ``at`` of every block, as FP32, shape (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def nibbles(codes: NDArray[Any]) -> Blocks:
    """The first half of each row in low nibbles, the second in high ones."""
    half = codes.shape[-1] // 2
    return np.asarray(codes[..., :half] | (codes[..., half:] << 4), np.uint8)


def halves(packed: Blocks) -> Blocks:
    """What `nibbles` packed."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def bit_plane(packed: Blocks) -> Blocks:
    """Single bits, lowest first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def inverse(scale: NDArray[Any]) -> Floats:
    """1 / scale, and 0 for 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale).astype(np.float32)


def interleave(codes: Blocks, bits: int, span: int) -> Blocks:
    """Pack runs of ``span`` elements: byte i of a run of 8/bits spans holds element i of each, lowest bits first."""
    parts = codes.reshape(len(codes), -1, 8 // bits, span)
    packed = np.zeros((len(codes), parts.shape[1], span), np.uint8)
    for place in range(8 // bits):
        packed |= parts[:, :, place] << (bits * place)
    return packed.reshape(len(codes), -1)


def separate(packed: Blocks, bits: int, span: int) -> Blocks:
    """What `interleave` packed."""
    runs = packed.reshape(len(packed), -1, 1, span)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[None, None, :, None]
    return np.asarray((runs >> shifts) & np.uint8(2**bits - 1), np.uint8).reshape(len(packed), -1)
