"""The screens of number formats: every fact beside what specifications say of it, and every fact where it belongs.

OCP OFP8 1.0 (E4M3: bias 7, 448, 2^-6, 2^-9; E5M2: 57,344), OCP MX 1.0 (one E8M0 scale of 32), llama.cpp's ggml-common.h
(block sizes), Dettmers et al. 2023 (NF4, double quantisation), compressed-tensors (scales of 16 bits).
"""

from __future__ import annotations

import math
import re
from functools import cache

import pytest

from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.hardware.catalogue import all_accelerators, find
from trilemma.report.formats import (
    effective_formula,
    format_document,
    in_hardware,
    render_comparison,
    render_format,
    render_formats,
    show,
    show_db,
    slower_than_bf16,
)

EVERY = [catalogue.get(name) for name in catalogue.names()]


@cache
def screen(name: str, explain: bool = False) -> str:
    return render_format(catalogue.get(name), all_accelerators(), None, explain=explain, width=400)


def facts(name: str) -> dict[str, str]:
    """The table of one format, read back."""
    table = screen(name).split("In hardware")[0]
    pairs = (re.split(r" {2,}", line.strip(), maxsplit=1) for line in table.splitlines()[2:])
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


#: Format → what its table must say.
SAID: dict[str, dict[str, str]] = {
    "fp8_e4m3": {
        "coding": "1 sign, 4 exponent (bias 7), 3 mantissa bits", "special codes": "NaN", "largest": "448",
        "lowest": "-448", "least normal": "0.015625", "least subnormal": "0.0019531", "epsilon": "0.125",
        "effective bits": "8", "bits per element": "8",
    },
    "fp8_e5m2": {"special codes": "infinity and NaN", "largest": "57,344", "epsilon": "0.25"},
    "fp4_e2m1": {"special codes": "none: every code is a number", "largest": "6", "least subnormal": "0.5"},
    "e8m0": {"coding": "0 sign, 8 exponent (bias 127), 0 mantissa bits", "largest": "2^127"},
    "bf16": {"coding": "1 sign, 8 exponent (bias 127), 7 mantissa bits", "least normal": "2^-126"},
    "fp8_block": {"effective bits": "8 + 32 / (128 · 128) = 8.00195", "scale": "fp32 per 128 × 128 block"},
    "fp8_tensor": {"effective bits": "8 + 32 / tensor = 8", "scale": "fp32 per matrix"},
    "int8_channel": {"effective bits": "8 + 32 / channel = 8", "scale": "fp32 per output row", "step": "1",
                     "bits in a 4096 × 4096 matrix": f"{8 + 32 / 4096:.6g}", "largest": "127", "lowest": "-128"},
    "mxfp4": {"effective bits": "4 + 8 / 32 = 4.25", "scale": "e8m0 per 32 neighbours of a row"},
    "mxfp8": {"effective bits": "8 + 8 / 32 = 8.25"},
    "nvfp4": {"effective bits": "4 + 8 / 16 + 32 / tensor = 4.5", "tensor level": "32 bits per matrix"},
    "int4_g128": {"effective bits": "4 + 16 / 128 = 4.125", "scale": "fp16 per 128 neighbours of a row"},
    "int4_g128_zp4": {"effective bits": "4 + 16 / 128 + 4 / 128 = 4.15625",
                      "zero point": "4 bits per 128 neighbours of a row"},
    "nf4": {"scale": "fp32 per 64 neighbours of the flattened matrix", "effective bits": "4 + 32 / 64 = 4.5"},
    "nf4_double_quant": {"effective bits": "4 + 8 / 64 + 32 / (64 · 256) + 32 / tensor = 4.12695",
                         "scale": "8 bits per 64 neighbours of the flattened matrix",
                         "second level": "32 bits per 256 scales"},
    "q4_k": {"effective bits": "144 bytes · 8 / 256 elements = 4.5", "block": "256 elements in 144 bytes"},
    "q6_k": {"effective bits": "210 bytes · 8 / 256 elements = 6.5625"},
    "q8_0": {"effective bits": "34 bytes · 8 / 32 elements = 8.5"},
    "iq4_xs": {"effective bits": "136 bytes · 8 / 256 elements = 4.25"},
    "uint8": {"lowest": "0", "largest": "255"},
}  # fmt: skip
#: Label → whether a format has such a line.
HAVE = {
    "bits in a 4096 × 4096 matrix": lambda one: one.granularity in ("tensor", "channel", "block"),
    "element": lambda one: bool(one.element),
    "scale": lambda one: one.scale_bits > 0,
    "zero point": lambda one: one.zero_point_bits > 0,
    "second level": lambda one: one.superblock > 0,
    "tensor level": lambda one: one.tensor_bits > 0,
    "block": lambda one: one.block_bytes > 0,
    "coding": lambda one: one.exponent_bits is not None,
    "special codes": lambda one: one.exponent_bits is not None,
    "largest": lambda one: one.max_value is not None,
    "least normal": lambda one: one.smallest_normal is not None,
    "step": lambda one: one.kind == "int" and one.epsilon is not None,
    "epsilon": lambda one: one.kind != "int" and one.epsilon is not None,
    "also called": lambda one: bool(one.aliases),
}


@pytest.mark.parametrize("name", SAID)
def test_a_screen_says_what_the_specification_says(name: str) -> None:
    found = facts(name)
    assert {label: found.get(label) for label in SAID[name]} == SAID[name]


@pytest.mark.parametrize("fmt", EVERY, ids=lambda fmt: fmt.name)
def test_a_screen_has_the_lines_of_its_format_alone(fmt: Format) -> None:
    found = facts(fmt.name)
    assert {label: label in found for label in HAVE} == {label: has(fmt) for label, has in HAVE.items()}
    said = " ".join(screen(fmt.name, explain=True).split())  # lines are broken where they read well
    assert f"Source: {catalogue.sources()[fmt.source]}" in said
    assert f"Effective bits: {effective_formula(fmt)}" in said
    assert "Effective bits:" not in screen(fmt.name)
    assert (" Pitfalls - " in said) == bool(fmt.pitfalls)
    assert all(f"- {one}" in said for one in fmt.pitfalls)


@pytest.mark.parametrize("fmt", EVERY, ids=lambda fmt: fmt.name)
def test_a_formula_comes_to_what_it_says(fmt: Format) -> None:
    """Read as arithmetic, a tensor and a channel of endless size."""
    left, _, right = effective_formula(fmt).rpartition(" = ")
    if left:
        words = left.replace("·", "*").replace("elements", "").replace("bytes", "")
        words = words.replace("tensor", "1e30").replace("channel", "1e30")
        assert eval(words) == pytest.approx(float(right), rel=1e-5)
    assert float(right) == pytest.approx(fmt.effective_bits, rel=1e-5)


def cards(name: str, *, explain: bool) -> set[str]:
    lines = screen(name, explain).split("In hardware\n")[1].split("\n\n")[0].splitlines()
    return {one for line in lines if ": " in line for one in line.split(": ", 1)[1].split(", ")}


@pytest.mark.parametrize(
    ("name", "having", "lacking"),
    [
        ("fp8_e4m3", {"nvidia-h100-sxm5-80gb", "amd-mi355x", "nvidia-l4"}, {"amd-mi300x", "nvidia-a100-sxm4-80gb"}),
        ("fp8_e4m3fnuz", {"amd-mi300x", "amd-mi325x"}, {"amd-mi355x", "nvidia-h100-sxm5-80gb"}),
        ("nvfp4", {"nvidia-b200-sxm-180gb", "nvidia-rtx-5090"}, {"nvidia-h100-sxm5-80gb", "amd-mi355x"}),
        ("mxfp4", {"amd-mi355x", "nvidia-b200-sxm-180gb"}, {"nvidia-h200-sxm", "amd-mi300x"}),
        ("bf16", {"nvidia-a100-sxm4-80gb", "amd-mi300x"}, {"nvidia-t4"}),
    ],
)
def test_cards_that_multiply_a_format_as_it_is(name: str, having: set[str], lacking: set[str]) -> None:
    fmt, found = catalogue.get(name), cards(name, explain=True)
    assert having <= found
    assert not lacking & found
    assert all(in_hardware(fmt, find(card)) for card in having)
    assert not any(in_hardware(fmt, find(card)) for card in lacking)
    document = format_document(fmt, all_accelerators())
    assert having <= set(document["accelerators"])
    assert not lacking & set(document["accelerators"])


def test_three_cards_of_an_architecture_are_one_and_two_more() -> None:
    short = screen("fp8_e4m3")
    assert re.search(r"- AMD CDNA4 gfx950: amd-mi350x, amd-mi355x$", short, re.M)  # two are both named
    count = len([one for one in all_accelerators() if one.architecture == find("h100-sxm").architecture])
    assert re.search(rf"- NVIDIA Hopper sm_90: nvidia-\S+ and {count - 1} more$", short, re.M)
    assert "(FP8 coding not stated)" not in screen("int8")
    for card in all_accelerators():
        if in_hardware(catalogue.get("fp8_e4m3"), card):
            stated = f"{card.vendor} {card.architecture} (FP8 coding not stated)" in short
            assert stated == (card.fp8_flavour is None), card.id


def test_formats_that_no_card_multiplies_are_expanded() -> None:
    assert "- no matrix units of its own: expanded to 16 bits" in screen("nf4")
    text = render_format(catalogue.get("nvfp4"), [find("h100-sxm")], None, explain=False, width=100)
    assert "- on no accelerator of the catalogue" in text


def test_integers_are_slower_than_bf16_on_blackwell_ultra() -> None:
    """B300's datasheet: INT8 300 TOP/s (dense 0.15 P), BF16 2.25 PFLOP/s dense: integer units were cut for FP4."""
    int8 = catalogue.get("int8")
    slow = {one.id for one in all_accelerators() if in_hardware(int8, one) and slower_than_bf16(int8, one)}
    assert slow == {"nvidia-b300-sxm", "nvidia-gb300"}
    document = format_document(catalogue.get("int8_channel"), all_accelerators())
    assert set(document["slower_than_bf16"]) == slow
    card = find("b300-sxm")
    figures = (
        f"{card.id} {card.peak_flops['int8'].value / 1e12:,.0f} against {card.peak_flops['bf16'].value / 1e12:,.0f}"
    )
    assert f"- slower than BF16 there (dense TFLOP/s): {figures}; nvidia-gb300 " in screen("int8")
    assert "slower than BF16" not in screen("fp8_e4m3")
    assert not slower_than_bf16(catalogue.get("bf16"), card)


def test_the_catalogue_lists_every_format_once_in_its_family() -> None:
    text = render_formats(EVERY, width=200)
    lines = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert all(lines.count(one.name) == 1 for one in EVERY)
    families = ["floating point", "floating point with scales", "integers", "integers with scales", "codebooks"]
    at = [text.splitlines().index(one) for one in [*families, "GGUF blocks"]]
    assert at == sorted(at)
    row = next(line for line in text.splitlines() if line.startswith("fp8_e4m3 "))
    assert re.split(r" {2,}", row)[1:6] == ["8", "8", "448", "0.015625", "0.125"]
    row = next(line for line in text.splitlines() if line.startswith("q4_k "))
    assert re.split(r" {2,}", row)[2:4] == ["4.5", "256"]
    some = render_formats([catalogue.get("nf4")], explain=True)
    assert some.startswith("codebooks\n")
    assert "integers with" not in some
    assert "  nf4: 4 + 32 / 64 = 4.5; " in some
    assert "  nf4: " not in render_formats([catalogue.get("nf4")])


def test_formats_compared_stand_in_order_of_their_bits() -> None:
    measured = {
        name: (catalogue.get(name), {"normal": quality, "outliers": math.inf})
        for name, quality in (("int8_g128", 40.04), ("mxfp4", 18.96), ("int4_g128", 20.0))
    }
    lines = render_comparison(measured, {"normal": "a bell"}).splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in lines[3:6]]
    assert rows == [
        ["int4_g128", "4.125", "20.0", "exact"],
        ["mxfp4", "4.25", "19.0", "exact"],
        ["int8_g128", "8.125", "40.0", "exact"],
    ]
    assert lines[0] == "signal to quantisation noise, dB"
    assert "normal: a bell." in lines


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"), (0.0, "0"), (448.0, "448"), (57344.0, "57,344"), (0.015625, "0.015625"), (1e6, "2^"), (2.0**20, "2^20"),
        (2.0**-14, "2^-14"), (1.5 * 2.0**-20, f"{1.5 * 2.0**-20:.4g}"), (0.0001, "0.0001"), (999999.0, "999,999"),
        (3.4e38, "3.4e+38"), (-448.0, "-448"), (0.123456789, "0.12346"), (1234.5, "1,234.5"),
    ],
)  # fmt: skip
def test_numbers_in_five_digits_and_powers_of_two(value: float | None, said: str) -> None:
    if said == "2^":  # a million is no power of two
        assert show(value) == "1e+06"
    else:
        assert show(value) == said


def test_decibels() -> None:
    assert (show_db(math.inf), show_db(12.34)) == ("exact", "12.3")


@pytest.mark.parametrize("fmt", EVERY, ids=lambda fmt: fmt.name)
def test_a_document_leaves_out_what_does_not_apply(fmt: Format) -> None:
    found = format_document(fmt, all_accelerators())
    assert None not in found.values()
    assert ("group" in found, "block" in found) == (bool(fmt.group), fmt.granularity == "block")
    assert ("has_nan" in found) == ("has_infinity" in found) == ("exponent_bits" in found)
    assert ("accelerators" in found) == bool(fmt.hardware)
    assert "accelerators" not in format_document(fmt)
