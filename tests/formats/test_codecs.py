"""Codecs without torch: pinned codes, and what must hold for every format and tensor."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trilemma.errors import InputError
from trilemma.formats import codebooks
from trilemma.formats.catalogue import get, names
from trilemma.formats.codecs import dequantise, quantise, round_trip
from trilemma.formats.units import join, layout, split

NARROW = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1")
NO_ENCODER = tuple(
    name for name in names() if name.startswith(("iq1", "iq2", "iq3", "q1", "q8_k"))
)  # read only: they need ggml's own search
PACKED = tuple(name for name in names() if get(name).kind == "packed" and name not in NO_ENCODER)
SCALED = tuple(name for name in names() if get(name).granularity != "none" and get(name).kind != "packed")

tensors = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=70),
    elements=st.floats(-1e4, 1e4, width=32),
    fill=st.floats(-4, 4, width=32),
)


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- choices -----------------------------------------------------------------------------------------------------


def test_stochastic_rounding_repeats_with_its_seed() -> None:
    values = noise((3, 50))
    first, second = (
        round_trip(values, "nvfp4", rounding="stochastic", generator=np.random.default_rng(5)) for _ in range(2)
    )
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("name", "choices", "hint"),
    [
        ("fp8_e4m3", {"overflow": "inf"}, "no infinity"),
        ("fp4_e2m1", {"overflow": "nan"}, "no NaN"),
        ("fp8_e4m3", {"overflow": "wrap"}, "saturate, nan or inf"),
        ("fp8_e4m3", {"rounding": "up"}, "nearest_even or stochastic"),
        ("fp8_e4m3", {"rounding": "stochastic"}, "generator"),
        ("int8_channel", {"rounding": "stochastic"}, "generator"),
        ("int8_channel", {"overflow": "nan"}, "saturate"),
        ("nvfp4", {"overflow": "nan"}, "no NaN"),
        ("nf4", {"rounding": "stochastic"}, "nearest only"),
        ("fp32", {"rounding": "stochastic"}, "nearest only"),
        ("mxfp8", {"power_rule": "ceil"}, "floor or rceil"),
        ("int4_g32", {"int_range": "all"}, "full or restricted"),
    ],
)
def test_impossible_choices_are_refused(name: str, choices: dict[str, str], hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        quantise(noise((2, 32)), name, **choices)


@pytest.mark.parametrize("name", ["iq2_xxs", "iq3_s", "q8_k"])
def test_formats_without_an_encoder_say_so(name: str) -> None:
    with pytest.raises(InputError, match="no encoder"):
        quantise(noise((1, 256)), name)


# ---- whole tensors -------------------------------------------------------------------------------------------------


@given(name=st.sampled_from(SCALED), shape=st.lists(st.integers(1, 150), min_size=1, max_size=3))
@settings(max_examples=100)
def test_split_and_join_undo_each_other(name: str, shape: list[int]) -> None:
    fmt = get(name)
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    lay = layout(tuple(shape), fmt)
    rows = split(values, fmt, lay)
    assert rows.shape == (lay.count, lay.elements)
    assert np.array_equal(join(rows, fmt, lay), values)


@given(name=st.sampled_from(SCALED), values=tensors)
@settings(max_examples=100)
def test_requantising_with_the_same_scales_changes_nothing(name: str, values: np.ndarray) -> None:
    first = quantise(values, name)
    left = dequantise(first)
    assert left.shape == values.shape
    assert np.array_equal(dequantise(quantise(left, name, like=first)), left)


@given(
    name=st.sampled_from([*NARROW, "fp16", "bf16", "tf32", "mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "int8"]),
    values=tensors,
)
@settings(max_examples=100)
def test_formats_with_fixed_or_power_of_two_scales_are_idempotent(name: str, values: np.ndarray) -> None:
    once = round_trip(values, name)
    assert np.array_equal(round_trip(once, name), once)


@given(name=st.sampled_from([name for name in SCALED if get(name).kind == "int"]), values=tensors)
@settings(max_examples=100)
def test_integer_error_is_at_most_half_a_step(name: str, values: np.ndarray) -> None:
    fmt = replace(get(name), scale_format="fp32", scale_bits=32)
    encoded = quantise(values, fmt)
    lay = layout(values.shape, fmt)
    step = split(np.ones(values.shape, np.float32), fmt, lay) * encoded.scales.reshape(-1, 1)
    # A rounded zero point moves the grid by up to half a step more at its ends.
    most = 0.5 if encoded.zero_points is None else 1.0
    error = np.abs(dequantise(encoded) - values)
    assert (error <= join(step, fmt, lay) * np.float32(most * (1 + 2e-4)) + 1e-30).all()


@pytest.mark.parametrize("name", [name for name in SCALED if get(name).kind == "float"])
def test_float_error_is_at_most_half_a_step(name: str) -> None:
    fmt = get(name)
    values = noise((40, 256), 3)
    encoded = quantise(values, fmt, power_rule="rceil")
    unit = np.abs(split(values, fmt, layout(values.shape, fmt))).max(axis=1, keepdims=True)
    lay = layout(values.shape, fmt)
    largest = join(np.broadcast_to(unit, (lay.count, lay.elements)), fmt, lay)
    relative = fmt.epsilon / 2
    # Below the least normal the step is constant; scales of E4M3 are themselves off by up to 1/16.
    floor = largest / fmt.max_value * fmt.smallest_normal * fmt.epsilon * 1.2
    slack = 1 / 16 if fmt.scale_format == "fp8_e4m3" else 1e-6
    assert (np.abs(dequantise(encoded) - values) <= (relative + slack) * np.abs(values) + floor).all()


@pytest.mark.parametrize("name", [*SCALED, *PACKED])
def test_rows_of_zeros_stay_zeros_and_their_neighbours_do_not_mind(name: str) -> None:
    values = noise((4, 512))
    values[1] = 0
    left = round_trip(values, name)
    assert not left[1].any()
    assert np.isfinite(left).all()
    assert not round_trip(np.zeros((2, 256), np.float32), name).any()


@pytest.mark.parametrize("name", [*NARROW, *SCALED, *PACKED, "fp64", "fp32", "tf32", "bf16", "int8"])
@pytest.mark.parametrize("shape", [(0,), (0, 256), (3, 0), (2, 0, 256)])
def test_empty_tensors(name: str, shape: tuple[int, ...]) -> None:
    assert round_trip(np.empty(shape, np.float32), name).shape == shape


@pytest.mark.parametrize("name", [*SCALED, "bf16", "fp4_e2m1", "int8"])
def test_scalars_and_odd_shapes(name: str) -> None:
    assert round_trip(np.float32(0.5), name).shape == ()
    assert round_trip(noise((5, 3, 7, 33)), name).shape == (5, 3, 7, 33)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name in [*SCALED, *PACKED, "int8"] if not name.startswith("mx")])
def test_nan_and_infinity_are_refused_where_one_scale_would_spread_them(name: str, bad: float) -> None:
    values = noise((2, 256))
    values[1, 5] = bad
    with pytest.raises(InputError, match="NaN or infinity"):
        quantise(values, name)


def test_an_mx_group_that_holds_nan_becomes_nan_and_no_other() -> None:
    for name in ("mxfp8", "mxfp6", "mxfp4"):
        values = noise((1, 96))
        values[0, 40] = np.nan
        lost = np.isnan(round_trip(values, name))[0]
        assert lost[32:64].all()
        assert lost.sum() == 32


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int4_g32", "int4_g32_zp4", "nf4", "nf4_double_quant"])
def test_static_scales_do_not_hide_nan(name: str) -> None:
    known = quantise(noise((2, 64)), name)
    values = noise((2, 64))
    values[0, 3] = np.nan
    with pytest.raises(InputError, match="NaN"):
        quantise(values, name, like=known)


@pytest.mark.parametrize("name", PACKED)
def test_rows_that_do_not_fill_gguf_blocks_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="do not fill"):
        quantise(noise((2, get(name).group + 1)), name)


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-30, 1e30, 3e38])
@pytest.mark.parametrize("name", SCALED)
def test_extreme_magnitudes_stay_finite_or_are_refused(name: str, size: float) -> None:
    values = (np.sign(noise((4, 256))) * np.float32(size)).astype(np.float32)
    if size >= 1e30 and get(name).scale_format == "fp16":
        with pytest.raises(InputError, match=r"largest fp16 scale|infinit"):
            quantise(values, name)
    elif size == 3e38 and not get(name).signed:
        with pytest.raises(InputError, match="infinit"):  # the span of the group is no FP32
            quantise(values, name)
    else:
        assert np.isfinite(round_trip(values, name)).all()


def test_text_and_complex_numbers_are_refused() -> None:
    for values in (np.array(["a"]), np.array([1j])):
        with pytest.raises(InputError, match="real numbers"):
            quantise(values, "bf16")


# ---- rules ---------------------------------------------------------------------------------------------------------


def test_mx_scale_rules() -> None:
    values = np.zeros((3, 32), np.float32)
    values[:, 0] = [448, 450, 2.0**-126]
    assert quantise(values, "mxfp8").scales.tolist() == [[127], [127], [0]]
    assert quantise(values, "mxfp8", power_rule="rceil").scales.tolist() == [[127], [128], [0]]
    assert round_trip(values, "mxfp8")[1, 0] == 448
    assert round_trip(values, "mxfp8", power_rule="rceil")[1, 0] == 448
    values[1, 0] = 511
    assert round_trip(values, "mxfp8")[1, 0] == 448
    assert round_trip(values, "mxfp8", power_rule="rceil")[1, 0] == 512


def test_nvfp4_levels() -> None:
    values = noise((2, 3, 64))
    values[1] *= 1000
    encoded = quantise(values, "nvfp4")
    assert encoded.tensor_scale.shape == (2, 1, 1)
    assert np.allclose(encoded.tensor_scale[:, 0, 0], np.abs(values).max(axis=(1, 2)) / (6 * 448))
    assert encoded.scales.max(axis=(1, 2)).tolist() == [0x7E, 0x7E]


def test_integer_ranges() -> None:
    values = np.array([[-127.5, 127.5, 64, 0]], np.float32)
    full = quantise(values, "int8_channel")
    assert full.codes.tolist() == [[-128, 127, 64, 0]]
    assert full.scales.item() == 1
    restricted = quantise(values, "int8_channel", int_range="restricted")
    assert restricted.codes.tolist() == [[-127, 127, 64, 0]]
    assert restricted.scales.item() == pytest.approx(127.5 / 127)
    zeros = quantise(np.array([[0, 1, 2, 3]], np.float32), "int4_g32_zp4")
    assert zeros.codes.tolist() == [[0, 5, 10, 15]]
    assert zeros.zero_points.item() == 0


def test_beyond_static_scales_overflow_is_what_was_asked_for() -> None:
    known = quantise(np.array([[-2.0, 2.0]], np.float32), "fp8_channel")
    beyond = np.array([[100.0, 1.0]], np.float32)
    assert dequantise(quantise(beyond, "fp8_channel", like=known)).tolist() == [[2, 1]]
    assert np.isnan(round_trip(beyond, "fp8_channel", like=known, overflow="nan")).tolist() == [[True, False]]
    assert np.isnan(round_trip(np.array([[np.nan, 1]]), "fp8_channel", like=known)).tolist() == [[True, False]]
    with pytest.raises(InputError, match="scales to reuse"):
        quantise(np.ones((2, 2)), "fp8_channel", like=known)


def test_nf4_codes_and_the_dynamic_map() -> None:
    values = np.tile(codebooks.NF4, 4)[None]
    encoded = quantise(values, "nf4")
    assert encoded.codes[0, :16].tolist() == list(range(16))
    assert np.array_equal(dequantise(encoded), values)
    table = codebooks.dynamic_map()
    assert table.size == 256
    assert table[0] == np.float32(-0.99296874)
    assert table[127] == 0
    assert table[-1] == 1


def test_nearest_nf4_is_nearest() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 20_000).astype(np.float32)
    error = np.abs(codebooks.NF4[codebooks.nearest_nf4(values)] - values)
    assert (error <= np.abs(codebooks.NF4 - values[:, None]).min(axis=1) + 1e-7).all()


@pytest.mark.parametrize("name", names())
def test_size_is_what_the_catalogue_says(name: str) -> None:
    if name in NO_ENCODER:
        pytest.skip("no encoder")
    encoded = quantise(np.abs(noise((3, 512))), name)
    assert encoded.n_bytes == get(name).storage_bytes((3, 512))
    if get(name).kind == "packed":
        assert encoded.codes.nbytes == encoded.n_bytes


def test_gguf_blocks_against_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    values = noise((8, 512))
    rng = np.random.default_rng(0)
    for name in PACKED:
        kind = gguf.GGMLQuantizationType[name.removeprefix("gguf_").upper()]
        fmt = get(name)
        blocks = rng.integers(0, 256, (8, fmt.storage_bytes((1, 512))), dtype=np.uint8)
        if name == "gguf_nvfp4":  # no scale has a sign
            blocks.reshape(-1, 36)[:, :4] &= 0x7F
        with np.errstate(all="ignore"):
            theirs = gguf.quants.dequantize(blocks, kind)
            ours = dequantise(replace_codes(fmt, blocks))
        np.testing.assert_array_equal(ours, theirs)
        if name.startswith(("q", "tq")) and "_k" not in name:
            np.testing.assert_array_equal(quantise(values, name).codes, gguf.quants.quantize(values, kind))


def replace_codes(fmt, blocks):  # type: ignore[no-untyped-def]
    return replace(quantise(np.zeros((8, 512)), "q4_0"), format=fmt, codes=blocks)


@pytest.mark.parametrize("name", ["iq1_s", "iq2_xxs", "iq3_s"])
def test_lattice_types_are_read_through_the_gguf_package(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    blocks = np.random.default_rng(1).integers(0, 256, (8, get(name).storage_bytes((1, 512))), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])
        np.testing.assert_array_equal(dequantise(replace_codes(get(name), blocks)), theirs)


def test_types_that_nothing_decodes_are_refused() -> None:
    pytest.importorskip("gguf")
    blocks = np.zeros((8, get("q8_k").storage_bytes((1, 512))), np.uint8)
    with pytest.raises(InputError, match="no decoder"):
        dequantise(replace_codes(get("q8_k"), blocks))


def test_wrong_block_bytes_are_refused() -> None:
    encoded = quantise(noise((2, 64)), "q4_0")
    with pytest.raises(InputError, match="bytes are not a tensor"):
        dequantise(replace(encoded, shape=(2, 96)))


@pytest.mark.parametrize("name", [name for name in PACKED if not name.startswith("tq")])
def test_gguf_signal_to_noise(name: str) -> None:
    values = noise((64, 1024))
    error = round_trip(values, name) - values
    decibel = 10 * math.log10((values**2).sum() / (error**2).sum())
    assert decibel > {2: 9, 3: 15, 4: 20, 5: 27, 6: 33, 8: 43}[int(get(name).bits)]


@pytest.mark.parametrize("name", ["tq1_0", "tq2_0"])
def test_ternary_types_keep_ternary_weights(name: str) -> None:
    values = np.random.default_rng(0).integers(-1, 2, (4, 512)).astype(np.float32) * 0.5
    assert np.array_equal(round_trip(values, name), values)
