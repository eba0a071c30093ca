"""The catalogue of number formats: every name a checkpoint, an engine flag or a paper uses, read from one data file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, UnknownName, shorten
from trilemma.formats.formats import Format

_GROUPED = re.compile(r"int([1-8])_g([1-9][0-9]{0,5})(?:_zp([1-9][0-9]?))?(?:_s(8|16|32))?")


def get(name: str) -> Format:
    """The format called ``name``: a catalogue name, an alias (bfloat16, half, float8_e4m3fn, F8_E4M3, torch.float16, Q4_K)
    or an integer group rule ``int<bits>_g<group>[_zp<bits>][_s<scale bits>]``.

    Raises `UnknownName` with near names.
    """
    if not isinstance(name, str):
        raise InputError(f"a number format is a name such as bf16, not {shorten(str(name))!r}")
    key = _normal(name)
    found = _by_alias().get(key)
    if found is not None:
        return found
    rule = _GROUPED.fullmatch(key)
    if rule is not None:
        bits, group, zero_point, scale = rule.groups()
        return int_group(int(bits), int(group), zero_point_bits=int(zero_point or 0), scale_bits=int(scale or 16))
    raise UnknownName("number format", name, _by_alias(), hint="see trilemma formats")


def names() -> tuple[str, ...]:
    """Names of the catalogue, in its order: floats, scaled floats, integers, integer groups, codebooks, GGUF."""
    return tuple(_rows())


def sources() -> Mapping[str, str]:
    """Source key → where the fact is published."""
    return dict(document()["sources"])


def int_group(bits: int, group: int, *, zero_point_bits: int = 0, scale_bits: int = 16) -> Format:
    """Integers of ``bits`` with one scale, and a zero point where ``zero_point_bits``, per ``group`` elements of a row.

    Effective bits are ``bits + (scale_bits + zero_point_bits) / group``: 4-bit g128 is 4.125 symmetric, 4.15625 with packed
    4-bit zeros (GPTQ, AWQ), 4.25 with 16-bit zeros.
    """
    if not 1 <= bits <= 8:
        raise InputError(f"integer groups of {bits} bits are not known; use 1 to 8")
    if not 0 <= zero_point_bits <= 32:
        raise InputError(f"zero points of {zero_point_bits} bits are not known; use 0 (none) to 32")
    facts = document()["grouped"]["asymmetric" if zero_point_bits else "symmetric"]
    zeros = f"_zp{zero_point_bits}" if zero_point_bits else ""
    wide = f"_s{scale_bits}" if scale_bits != 16 else ""
    return Format(
        name=f"int{bits}_g{group}{zeros}{wide}",
        bits=bits,
        kind="int",
        granularity="group",
        group=group,
        scale_bits=scale_bits,
        zero_point_bits=zero_point_bits,
        element=f"int{bits}",
        scale_format={32: "fp32", 16: "fp16", 8: "fp8_e4m3"}.get(scale_bits, ""),
        signed=not zero_point_bits,
        used=facts["used"],
        source=facts["source"],
    )


def _normal(name: str) -> str:
    return name[:200].strip().lower().removeprefix("torch.").replace("-", "_").replace(" ", "_")


@cache
def document() -> dict[str, Any]:
    """The data file as it is read."""
    return read_data("formats.toml")


@cache
def _rows() -> dict[str, Format]:
    data = document()
    rows: dict[str, Format] = {}
    for name, row in data["rows"].items():
        base = data["rows"][row["element"]] if "element" in row else row
        if row.get("kind") == "codebook":
            rows |= _listed_groups()
        rows[name] = _row(name, row, base)
    for row in data["gguf"]["rows"]:
        rows[row["name"]] = _packed(row, data["gguf"]["source"])
    return rows


@cache
def _listed_groups() -> dict[str, Format]:
    listed: dict[str, Format] = {}
    for name in document()["grouped"]["listed"]:
        rule = _GROUPED.fullmatch(name)
        assert rule is not None, name
        listed[name] = int_group(int(rule[1]), int(rule[2]), zero_point_bits=int(rule[3] or 0))
    return listed


def _row(name: str, row: dict[str, Any], base: dict[str, Any]) -> Format:
    scale = row.get("scale", "")
    scale_bits = row.get("scale_bits", document()["rows"][scale]["bits"] if scale else 0)
    return Format(
        name=name,
        bits=row["bits"],
        kind=row.get("kind", "float"),
        granularity=row.get("unit", "none"),
        group=row.get("group", 0),
        block=tuple(row.get("block", (0, 0))),
        scale_bits=scale_bits,
        tensor_bits=row.get("tensor_bits", 0),
        superblock=row.get("superblock", 0),
        superblock_bits=row.get("superblock_bits", 0),
        element=row.get("element", ""),
        scale_format=scale,
        exponent_bits=base.get("exponent"),
        mantissa_bits=base.get("mantissa"),
        bias=base.get("bias"),
        special=base.get("special", ""),
        signed=not base.get("unsigned", False) and base.get("special") != "scale",
        hardware=row.get("hardware", ""),
        aliases=tuple(row.get("aliases", ())),
        used=row.get("used", ""),
        pitfalls=tuple(row.get("pitfalls", ())),
        source=row["source"],
    )


def _packed(row: dict[str, Any], source: str) -> Format:
    return Format(
        name=row["name"],
        bits=row["bits"],
        kind="packed",
        granularity="group",
        group=row["group"],
        block_bytes=row["bytes"],
        used=row.get("used", ""),
        source=source,
    )


@cache
def _by_alias() -> dict[str, Format]:
    known: dict[str, Format] = {}
    for name, found in _rows().items():
        for alias in (name, *found.aliases):
            if known.setdefault(alias, found) is not found:
                raise ValueError(f"two number formats are called {alias!r} in formats.toml")
    for alias, name in document()["grouped"]["aliases"].items():
        known[alias] = known[name]
    return known
