"""GGUF types whose codes index a small table: IQ4's sixteen values, ternary weights, and NVFP4 in blocks of 64.

Layouts are those of ggml's ``ggml-common.h``. Ternary types are encoded as ggml does; IQ4 and NVFP4 by plain rounding, where
ggml searches for better scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.formats.catalogue import get
from trilemma.formats.elements import Floats, decode_table, encode, look_up, lookup_table
from trilemma.formats.gguf_bits import Blocks, half_bytes, halves, interleave, inverse, nibbles, read_half, separate

#: The values of IQ4_NL and IQ4_XS, finer around zero.
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_IQ4_MIDDLES = (_IQ4[:-1] + _IQ4[1:]) / 2
#: Powers of three that put five ternary digits into a byte, most significant first.
_DIGITS = np.array([81, 27, 9, 3, 1], np.uint16)


def encode_iq4_nl(values: Floats) -> Blocks:
    """4-bit codes of one FP16 scale per 32: (blocks, 32) to (blocks, 18)."""
    scale = _signed_peak(values) / np.float32(-127)
    return np.hstack([half_bytes(scale), nibbles(_nearest_iq4(values * inverse(scale)))])


def decode_iq4_nl(blocks: Blocks) -> Floats:
    """What `encode_iq4_nl` wrote."""
    return read_half(blocks, 0) * _IQ4[halves(blocks[:, 2:])]


def encode_iq4_xs(values: Floats) -> Blocks:
    """4-bit codes of 8 sub-blocks with signed 6-bit scales: (blocks, 256) to (blocks, 136)."""
    parts = values.reshape(-1, 8, 32)
    exact = _signed_peak(parts.reshape(-1, 32)).reshape(-1, 8) / np.float32(-127)
    d = (np.abs(exact).max(axis=1, keepdims=True) / np.float32(31)).astype(np.float16).astype(np.float32)
    scale = np.clip(np.rint(exact * inverse(d)), -32, 31)
    codes = _nearest_iq4(parts * inverse(d * scale)[:, :, None])
    shifted = (scale + 32).astype(np.uint16)
    high = ((shifted >> 4) << (2 * np.arange(8, dtype=np.uint16))).sum(axis=1, dtype=np.uint16)
    low = (shifted[:, ::2] & 15) | ((shifted[:, 1::2] & 15) << 4)
    packed = nibbles(codes).reshape(len(d), 128)
    return np.hstack([half_bytes(d), high[:, None].view(np.uint8), low.astype(np.uint8), packed])


def decode_iq4_xs(blocks: Blocks) -> Floats:
    """What `encode_iq4_xs` wrote."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> (2 * np.arange(8, dtype=np.uint16))
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    scale = (low | ((high & 3) << 4)).astype(np.float32) - 32
    codes = halves(blocks[:, 8:].reshape(len(blocks), 8, 16))
    values: Floats = (read_half(blocks, 0) * scale)[:, :, None] * _IQ4[codes]
    return values.reshape(len(blocks), 256)


def encode_tq2_0(values: Floats) -> Blocks:
    """Ternary codes, four in a byte: (blocks, 256) to (blocks, 66)."""
    scale, codes = _ternary(values)
    return np.hstack([interleave(codes, 2, 32), half_bytes(scale)])


def decode_tq2_0(blocks: Blocks) -> Floats:
    """What `encode_tq2_0` wrote."""
    return read_half(blocks, 64) * (separate(blocks[:, :64], 2, 32).astype(np.float32) - 1)


def encode_tq1_0(values: Floats) -> Blocks:
    """Ternary codes, five in a byte: (blocks, 256) to (blocks, 54)."""
    scale, codes = _ternary(values)
    packed = []
    for start, digits, span in _TERNARY_RUNS:
        run = codes[:, start : start + digits * span].reshape(-1, digits, span).astype(np.uint16)
        whole = (run * _DIGITS[:digits, None]).sum(axis=1, dtype=np.uint16)
        # The byte is the number as a fraction of 243 in 256ths, so that multiplying by three brings up the next digit.
        packed.append(((whole * 256 + 242) // 243).astype(np.uint8))
    return np.hstack([*packed, half_bytes(scale)])


def decode_tq1_0(blocks: Blocks) -> Floats:
    """What `encode_tq1_0` wrote."""
    digits_of, at = [], 0
    for _, digits, span in _TERNARY_RUNS:
        run = blocks[:, at : at + span].astype(np.uint16)
        at += span
        shifted = (run[:, None, :] * (3 ** np.arange(digits, dtype=np.uint16))[:, None]) & 0xFF
        digits_of.append(((shifted * 3) >> 8).reshape(len(blocks), digits * span))
    return read_half(blocks, 52) * (np.hstack(digits_of).astype(np.float32) - 1)


#: First element, digits to a byte and bytes of the three runs of a TQ1_0 block.
_TERNARY_RUNS = ((0, 5, 32), (160, 5, 16), (240, 4, 4))


def encode_gguf_nvfp4(values: Floats) -> Blocks:
    """E2M1 codes of four E4M3 scales: (blocks, 64) to (blocks, 36)."""
    element = get("fp4_e2m1")
    parts = values.reshape(-1, 16)
    scale = encode(np.abs(parts).max(axis=1) / np.float32(6), get("fp8_e4m3"))
    scaled = np.ascontiguousarray(parts * inverse(decode_table(get("fp8_e4m3"))[scale])[:, None], np.float32)
    codes = look_up(scaled.reshape(-1), lookup_table(element, "saturate")).reshape(-1, 16)
    return np.hstack([scale.reshape(-1, 4), nibbles(codes).reshape(-1, 32)])


def decode_gguf_nvfp4(blocks: Blocks) -> Floats:
    """What `encode_gguf_nvfp4` wrote; the scale has no sign and its NaN code stands for zero."""
    scale = np.nan_to_num(decode_table(get("fp8_e4m3"))[blocks[:, :4] & 0x7F])
    codes = halves(blocks[:, 4:].reshape(len(blocks), 4, 8))
    values: Floats = scale[:, :, None] * decode_table(get("fp4_e2m1"))[codes]
    return values.reshape(len(blocks), 64)


def _signed_peak(values: Floats) -> Floats:
    """The value of largest magnitude of every row, with its sign, shape (rows, 1)."""
    at = np.abs(values).argmax(axis=1)
    peak: Floats = np.take_along_axis(values, at[:, None], axis=1)
    return peak


def _nearest_iq4(scaled: NDArray[Any]) -> Blocks:
    return np.asarray(np.searchsorted(_IQ4_MIDDLES, scaled), np.uint8)


def _ternary(values: Floats) -> tuple[Floats, Blocks]:
    scale: Floats = np.abs(values).max(axis=1, keepdims=True)
    scaled = values * inverse(scale)
    # Halfway goes away from zero, as C's roundf.
    return scale, (np.trunc(scaled + np.copysign(np.float32(0.5), scaled)) + 1).astype(np.uint8)
