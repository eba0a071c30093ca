"""K-quants: GGUF super-blocks of 256 elements whose sub-blocks have narrow scales (and minima) of their own.

Layouts are those of ggml's ``ggml-common.h``. Encoding is plain rounding of each sub-block: ggml searches for better scales,
so its files are a little more exact than what is written here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilemma.formats.elements import Floats
from trilemma.formats.gguf_bits import Blocks, half_bytes, halves, interleave, inverse, read_half, separate

Codes: TypeAlias = NDArray[Any]


def _affine_parts(values: Floats, bits: int, groups: int, scale_bits: int) -> tuple[Any, ...]:
    """(d, dmin, scale codes, minimum codes, element codes) of sub-blocks: value = d · scale · code − dmin · minimum."""
    parts = values.reshape(len(values), groups, -1)
    low = np.minimum(parts.min(axis=2), 0)
    span = (np.maximum(parts.max(axis=2), 0) - low) / np.float32(2**bits - 1)
    top = np.float32(2**scale_bits - 1)
    d = (span.max(axis=1, keepdims=True) / top).astype(np.float16).astype(np.float32)
    dmin = (-low.min(axis=1, keepdims=True) / top).astype(np.float16).astype(np.float32)
    scale = np.clip(np.rint(span * inverse(d)), 0, top)
    minimum = np.clip(np.rint(-low * inverse(dmin)), 0, top)
    step, shift = d * scale, dmin * minimum
    codes = np.clip(np.rint((parts + shift[:, :, None]) * inverse(step)[:, :, None]), 0, 2**bits - 1)
    return d, dmin, scale.astype(np.uint8), minimum.astype(np.uint8), codes.astype(np.uint8).reshape(len(values), -1)


def _symmetric_parts(values: Floats, bits: int, groups: int, scale_bits: int) -> tuple[Any, ...]:
    """(d, signed scale codes, element codes from zero) of sub-blocks: value = d · scale · (code − half)."""
    parts = values.reshape(len(values), groups, -1)
    half = np.float32(2 ** (bits - 1))
    at = np.abs(parts).argmax(axis=2)[:, :, None]
    exact = np.take_along_axis(parts, at, axis=2)[:, :, 0] / -half
    top = np.float32(2 ** (scale_bits - 1) - 1)
    d = (np.abs(exact).max(axis=1, keepdims=True) / top).astype(np.float16).astype(np.float32)
    scale = np.clip(np.rint(exact * inverse(d)), -top, top)
    codes = np.clip(np.rint(parts * inverse(d * scale)[:, :, None]), -half, half - 1) + half
    return d, scale.astype(np.int8), codes.astype(np.uint8).reshape(len(values), -1)


def _pack_six(scale: Blocks, minimum: Blocks) -> Blocks:
    """Eight 6-bit scales and eight 6-bit minima in twelve bytes."""
    first = scale[:, :4] | ((scale[:, 4:] >> 4) << 6)
    second = minimum[:, :4] | ((minimum[:, 4:] >> 4) << 6)
    third = (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4)
    return np.hstack([first, second, third]).astype(np.uint8)


def _unpack_six(packed: Blocks) -> tuple[Blocks, Blocks]:
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.hstack([first & 63, (third & 15) | ((first >> 6) << 4)])
    minimum = np.hstack([second & 63, (third >> 4) | ((second >> 6) << 4)])
    return scale, minimum


def _affine_values(blocks: Blocks, at: int, scale: Codes, minimum: Codes, codes: Codes) -> Floats:
    step = read_half(blocks, at) * scale
    shift = read_half(blocks, at + 2) * minimum
    parts = codes.reshape(len(blocks), scale.shape[1], -1)
    return (step[:, :, None] * parts - shift[:, :, None]).reshape(len(blocks), -1)


def encode_q2_k(values: Floats) -> Blocks:
    """2-bit, 16 sub-blocks with 4-bit scales and minima: (blocks, 256) to (blocks, bytes)."""
    d, dmin, scale, minimum, codes = _affine_parts(values, 2, 16, 4)
    return np.hstack([scale | (minimum << 4), interleave(codes, 2, 32), half_bytes(d), half_bytes(dmin)])


def decode_q2_k(blocks: Blocks) -> Floats:
    """What `encode_q2_k` wrote."""
    packed = blocks[:, :16]
    return _affine_values(blocks, 80, packed & 15, packed >> 4, separate(blocks[:, 16:80], 2, 32))


def encode_q3_k(values: Floats) -> Blocks:
    """3-bit, 16 sub-blocks with signed 6-bit scales: (blocks, 256) to (blocks, bytes)."""
    d, scale, codes = _symmetric_parts(values, 3, 16, 6)
    shifted = (scale + 32).astype(np.uint8)
    low = (shifted[:, :8] & 15) | ((shifted[:, 8:] & 15) << 4)
    high = interleave(shifted >> 4, 2, 4)
    mask = interleave((codes >> 2) & 1, 1, 32)
    return np.hstack([mask, interleave(codes & 3, 2, 32), low, high, half_bytes(d)])


def decode_q3_k(blocks: Blocks) -> Floats:
    """What `encode_q3_k` wrote."""
    low, high = halves(blocks[:, 96:104]), separate(blocks[:, 104:108], 2, 4)
    scale = (low | (high << 4)).astype(np.float32) - 32
    codes = separate(blocks[:, 32:96], 2, 32) | (separate(blocks[:, :32], 1, 32) << 2)
    return _symmetric_values(read_half(blocks, 108), scale, codes, 4)


def encode_q4_k(values: Floats) -> Blocks:
    """4-bit, 8 sub-blocks with 6-bit scales and minima: (blocks, 256) to (blocks, bytes)."""
    d, dmin, scale, minimum, codes = _affine_parts(values, 4, 8, 6)
    return np.hstack([half_bytes(d), half_bytes(dmin), _pack_six(scale, minimum), interleave(codes, 4, 32)])


def decode_q4_k(blocks: Blocks) -> Floats:
    """What `encode_q4_k` wrote."""
    return _affine_values(blocks, 0, *_unpack_six(blocks[:, 4:16]), separate(blocks[:, 16:], 4, 32))


def encode_q5_k(values: Floats) -> Blocks:
    """5-bit, 8 sub-blocks with 6-bit scales and minima: (blocks, 256) to (blocks, bytes)."""
    d, dmin, scale, minimum, codes = _affine_parts(values, 5, 8, 6)
    high = interleave(codes >> 4, 1, 32)
    return np.hstack([half_bytes(d), half_bytes(dmin), _pack_six(scale, minimum), high, interleave(codes & 15, 4, 32)])


def decode_q5_k(blocks: Blocks) -> Floats:
    """What `encode_q5_k` wrote."""
    codes = separate(blocks[:, 48:], 4, 32) | (separate(blocks[:, 16:48], 1, 32) << 4)
    return _affine_values(blocks, 0, *_unpack_six(blocks[:, 4:16]), codes)


def encode_q6_k(values: Floats) -> Blocks:
    """6-bit, 16 sub-blocks with signed 8-bit scales: (blocks, 256) to (blocks, bytes)."""
    d, scale, codes = _symmetric_parts(values, 6, 16, 8)
    low = interleave(codes & 15, 4, 64)
    return np.hstack([low, interleave(codes >> 4, 2, 32), scale.view(np.uint8), half_bytes(d)])


def decode_q6_k(blocks: Blocks) -> Floats:
    """What `encode_q6_k` wrote."""
    codes = separate(blocks[:, :128], 4, 64) | (separate(blocks[:, 128:192], 2, 32) << 4)
    scale = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _symmetric_values(read_half(blocks, 208), scale, codes, 32)


def _symmetric_values(d: Floats, scale: Floats, codes: Codes, half: int) -> Floats:
    parts = codes.reshape(len(codes), scale.shape[1], -1).astype(np.float32) - half
    return ((d * scale)[:, :, None] * parts).reshape(len(codes), -1)
