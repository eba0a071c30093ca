"""GGUF blocks: tensors as the bytes that ggml stores, block by block along a row.

Layouts are those of the structs in ggml's ``ggml-common.h``. The legacy types are encoded as ggml's reference rounding
does, K-quants and codebook types by modules of their own. Lattice types (IQ1 to IQ3) are read through the ``gguf`` package
and have no encoder: theirs is a search that needs an importance matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trilemma.errors import InputError
from trilemma.formats import gguf_codebooks as tables
from trilemma.formats import gguf_k_quants as k
from trilemma.formats.elements import Floats
from trilemma.formats.formats import Format
from trilemma.formats.gguf_bits import Blocks, bit_plane, half_bytes, halves, inverse, nibbles, read_half


def quantise(values: Floats, fmt: Format) -> Blocks:
    """Blocks of ``values`` as uint8, shape (…, rows, bytes of a row). Raises `InputError` where rows do not fill blocks."""
    encoder = ENCODERS.get(fmt.name)
    if encoder is None:
        raise InputError(f"{fmt.name} has no encoder here; use llama-quantize, or one of {', '.join(ENCODERS)}")
    columns = values.shape[-1] if values.ndim else 1
    if columns % fmt.group:
        raise InputError(
            f"rows of {columns} do not fill {fmt.name} blocks of {fmt.group}; choose a type with 32, or pad"
        )
    if not np.isfinite(values).all():
        raise InputError(f"the tensor holds NaN or infinity, which {fmt.name} cannot hold; mend it before quantising")
    stored = (*values.shape[:-1], columns // fmt.group * fmt.block_bytes)
    if values.size == 0:
        return np.empty(stored, np.uint8)
    blocks = encoder(values.reshape(-1, fmt.group))
    return blocks.reshape(stored)


def dequantise(blocks: Blocks, fmt: Format, shape: tuple[int, ...]) -> Floats:
    """FP32 values of a tensor of ``shape`` from its blocks."""
    rows = np.ascontiguousarray(blocks, np.uint8)
    if rows.size != fmt.storage_bytes(shape):
        raise InputError(
            f"{rows.size} bytes are not a tensor of shape {shape} in {fmt.name}, which takes {fmt.storage_bytes(shape)}"
        )
    decoder = _DECODERS.get(fmt.name) or _through_package(fmt)
    if rows.size == 0:
        return np.empty(shape, np.float32)
    return decoder(rows.reshape(-1, fmt.block_bytes)).astype(np.float32, copy=False).reshape(shape)


def _through_package(fmt: Format) -> Callable[[Blocks], Floats]:
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise InputError(
            f"{fmt.name} is read through the gguf package; install it: pip install trilemma[gguf]"
        ) from None
    kind = GGMLQuantizationType[fmt.name.upper()]

    def decode(blocks: Blocks) -> Floats:
        try:
            return np.asarray(dequantize(blocks, kind), np.float32)
        except NotImplementedError:
            raise InputError(f"{fmt.name} has no decoder here nor in the gguf package; use llama.cpp") from None

    return decode


def _encode_signed(values: Floats, bits: int) -> tuple[Blocks, Blocks]:
    # The value of largest magnitude gets the lowest code, whichever its sign.
    at = np.abs(values).argmax(axis=1)
    scale = np.take_along_axis(values, at[:, None], axis=1) / np.float32(-(2 ** (bits - 1)))
    shifted = values * inverse(scale) + np.float32(2 ** (bits - 1) + 0.5)
    return half_bytes(scale), np.clip(np.trunc(shifted), 0, 2**bits - 1).astype(np.uint8)


def _encode_affine(values: Floats, bits: int) -> tuple[Blocks, Blocks]:
    low = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - low) / np.float32(2**bits - 1)
    codes = np.trunc((values - low) * inverse(scale) + np.float32(0.5))
    return np.hstack([half_bytes(scale), half_bytes(low)]), np.clip(codes, 0, 2**bits - 1).astype(np.uint8)


def _with_high_bits(head: Blocks, codes: Blocks) -> Blocks:
    return np.hstack([head, np.packbits(codes >> 4, axis=1, bitorder="little"), nibbles(codes & 15)])


def _encode_q4_0(values: Floats) -> Blocks:
    head, codes = _encode_signed(values, 4)
    return np.hstack([head, nibbles(codes)])


def _encode_q4_1(values: Floats) -> Blocks:
    head, codes = _encode_affine(values, 4)
    return np.hstack([head, nibbles(codes)])


def _encode_q5_0(values: Floats) -> Blocks:
    return _with_high_bits(*_encode_signed(values, 5))


def _encode_q5_1(values: Floats) -> Blocks:
    return _with_high_bits(*_encode_affine(values, 5))


def _encode_q8_0(values: Floats) -> Blocks:
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * inverse(scale)
    # Halfway goes away from zero, as C's roundf.
    whole = np.floor(np.abs(scaled))
    rounded = np.copysign(whole + (np.abs(scaled) - whole >= 0.5), scaled)
    return np.hstack([half_bytes(scale), rounded.astype(np.int8).view(np.uint8)])


def _decode_q4_0(blocks: Blocks) -> Floats:
    return read_half(blocks, 0) * (halves(blocks[:, 2:]).astype(np.float32) - 8)


def _decode_q4_1(blocks: Blocks) -> Floats:
    return read_half(blocks, 0) * halves(blocks[:, 4:]) + read_half(blocks, 2)


def _decode_q5_0(blocks: Blocks) -> Floats:
    codes = halves(blocks[:, 6:]) | (bit_plane(blocks[:, 2:6]) << 4)
    return read_half(blocks, 0) * (codes.astype(np.float32) - 16)


def _decode_q5_1(blocks: Blocks) -> Floats:
    codes = halves(blocks[:, 8:]) | (bit_plane(blocks[:, 4:8]) << 4)
    return read_half(blocks, 0) * codes + read_half(blocks, 2)


def _decode_q8_0(blocks: Blocks) -> Floats:
    return read_half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


#: GGUF types that are written here.
ENCODERS: dict[str, Callable[[Floats], Blocks]] = {
    "q4_0": _encode_q4_0,
    "q4_1": _encode_q4_1,
    "q5_0": _encode_q5_0,
    "q5_1": _encode_q5_1,
    "q8_0": _encode_q8_0,
    "q2_k": k.encode_q2_k,
    "q3_k": k.encode_q3_k,
    "q4_k": k.encode_q4_k,
    "q5_k": k.encode_q5_k,
    "q6_k": k.encode_q6_k,
    "iq4_nl": tables.encode_iq4_nl,
    "iq4_xs": tables.encode_iq4_xs,
    "tq1_0": tables.encode_tq1_0,
    "tq2_0": tables.encode_tq2_0,
    "gguf_nvfp4": tables.encode_gguf_nvfp4,
}
_DECODERS: dict[str, Callable[[Blocks], Floats]] = {
    "q4_0": _decode_q4_0,
    "q4_1": _decode_q4_1,
    "q5_0": _decode_q5_0,
    "q5_1": _decode_q5_1,
    "q8_0": _decode_q8_0,
    "q2_k": k.decode_q2_k,
    "q3_k": k.decode_q3_k,
    "q4_k": k.decode_q4_k,
    "q5_k": k.decode_q5_k,
    "q6_k": k.decode_q6_k,
    "iq4_nl": tables.decode_iq4_nl,
    "iq4_xs": tables.decode_iq4_xs,
    "tq1_0": tables.decode_tq1_0,
    "tq2_0": tables.decode_tq2_0,
    "gguf_nvfp4": tables.decode_gguf_nvfp4,
}
