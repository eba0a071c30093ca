"""The formats that quantisation toolkits write: rows of the format catalogue, with what a checkpoint states of its own."""

from __future__ import annotations

from dataclasses import replace

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.formats.formats import Format

#: Group sizes and bit widths outside these bounds are in no toolkit and would only hide a broken file.
MAX_GROUP = 2**20
MAX_BITS = 64


def fp8(granularity: str, *, block: tuple[int, int] = (128, 128)) -> Format:
    """FP8 E4M3 weights with one FP32 scale per ``tensor``, output ``channel`` or ``block`` (rows × columns)."""
    stored = catalogue.get(f"fp8_{granularity}")
    return stored if granularity != "block" or stored.block == block else replace(stored, block=block)


def grouped_int(bits: float, group: int, *, zero_point_bits: float = 0) -> Format:
    """Integers with a 16-bit scale per ``group`` neighbours of a row; ``group`` −1 or 0 is one per output channel."""
    if bits != int(bits) or not 1 <= bits <= 8:
        raise InputError(f"integer weights of {bits:g} bits are not known; they have 1 to 8")
    if group > 0:
        return catalogue.int_group(int(bits), group, zero_point_bits=int(zero_point_bits))
    base = catalogue.get("int8_channel" if bits == 8 else "int4_channel")
    return replace(base, name=f"int{bits:g}_channel", bits=bits, scale_bits=16, zero_point_bits=zero_point_bits)


def int8_channel() -> Format:
    """INT8 with one FP32 scale per output channel (SmoothQuant, LLM.int8())."""
    return catalogue.get("int8_channel")


def int8_tensor() -> Format:
    """INT8 with one scale per tensor."""
    return catalogue.get("int8_tensor")


def nvfp4(group: int = 16) -> Format:
    """FP4 E2M1 with an FP8 scale per 16 elements and one FP32 scale per tensor."""
    stored = catalogue.get("nvfp4")
    return stored if group == stored.group else replace(stored, group=group)


def mxfp(bits: int) -> Format:
    """OCP microscaling: FP4, FP6 or FP8 elements with a power-of-two scale per 32."""
    if bits not in (4, 6, 8):
        raise InputError(f"microscaling formats have 4, 6 or 8 bits, not {bits}")
    return catalogue.get(f"mxfp{bits}")


def four_bit_codebook(*, double_quant: bool) -> Format:
    """bitsandbytes NF4 and FP4: a 32-bit scale per 64 elements, or with double quantisation 8 bits and FP32 per 256 scales."""
    return catalogue.get("nf4_double_quant" if double_quant else "nf4")


def packed_bits(name: str, bits: float) -> Format:
    """A format whose stated bits per weight are all that is known of it (trellis and vector codebooks)."""
    return Format(name=name, bits=bits, kind="codebook")
