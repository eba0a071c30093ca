"""The catalogue: every row loads, sizes are exact, ranges are the published ones, names resolve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.errors import InputError, UnknownName
from trilemma.formats.catalogue import get, int_group, names, sources
from trilemma.formats.formats import Format

#: name: (max, smallest normal, smallest subnormal, epsilon); OFP8 table 1, OCP MX v1.0 tables 1-5, ml_dtypes.finfo.
RANGES = {
    "fp64": (1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 2.0**-52),
    "fp32": (3.4028234663852886e38, 2.0**-126, 2.0**-149, 2.0**-23),
    "fp16": (65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
    "bf16": (3.3895313892515355e38, 2.0**-126, 2.0**-133, 2.0**-7),
    "fp8_e4m3": (448.0, 2.0**-6, 2.0**-9, 2.0**-3),
    "fp8_e5m2": (57344.0, 2.0**-14, 2.0**-16, 2.0**-2),
    "fp8_e4m3fnuz": (240.0, 2.0**-7, 2.0**-10, 2.0**-3),
    "fp8_e5m2fnuz": (57344.0, 2.0**-15, 2.0**-17, 2.0**-2),
    "e8m0": (2.0**127, 2.0**-127, None, 1.0),
    "fp6_e2m3": (7.5, 1.0, 0.125, 0.125),
    "fp6_e3m2": (28.0, 0.25, 0.0625, 0.25),
    "fp4_e2m1": (6.0, 1.0, 0.5, 0.5),
}

EFFECTIVE_BITS = {
    "int4_g128": 4.125,
    "int4_g128_zp4": 4.15625,
    "int4_g128_zp16": 4.25,
    "int4_g32": 4.5,
    "mxfp8": 8.25,
    "mxfp6": 6.25,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "nf4": 4.5,
    "nf4_double_quant": 4 + 8 / 64 + 32 / (64 * 256),
    "fp8_block": 8 + 32 / 128**2,
    "q4_k": 4.5,
    "q6_k": 6.5625,
    "iq1_s": 1.5625,
    "tq1_0": 1.6875,
}


@pytest.mark.parametrize("name", sorted(RANGES))
def test_range_is_the_published_one(name: str) -> None:
    found = get(name)
    assert (found.max_value, found.smallest_normal, found.smallest_subnormal, found.epsilon) == RANGES[name]


@pytest.mark.parametrize("name", sorted(EFFECTIVE_BITS))
def test_effective_bits_count_scales_and_zero_points(name: str) -> None:
    assert get(name).effective_bits == pytest.approx(EFFECTIVE_BITS[name], rel=1e-12)


@pytest.mark.parametrize("name", names())
def test_every_row_is_sane(name: str) -> None:
    found = get(name)
    assert found.name == name
    assert found.source in sources()
    assert found.used
    assert found.bits <= found.effective_bits <= 2 * found.bits
    shape = (4096, 8192)
    assert 8 * found.storage_bytes(shape) / (4096 * 8192) == pytest.approx(found.effective_bits, rel=2e-3)
    assert found.storage_bytes((0, 128)) == 0
    if found.scale_format:
        assert get(found.scale_format).bits == found.scale_bits


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("half", "fp16"),
        ("F16", "fp16"),
        ("float32", "fp32"),
        ("fp8", "fp8_e4m3"),
        ("float8_e4m3fn", "fp8_e4m3"),
        ("F8_E4M3", "fp8_e4m3"),
        ("fp8_e5m2", "fp8_e5m2"),
        ("float8_e4m3fnuz", "fp8_e4m3fnuz"),
        ("Q4_K", "q4_k"),
        ("nf4-double-quant", "nf4_double_quant"),
        ("w4a16", "int4_g128"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert get(alias).name == name


def test_group_rule_makes_any_width_and_group() -> None:
    assert get("int3_g64_zp3") == int_group(3, 64, zero_point_bits=3)
    assert get("int4_g128_s32").effective_bits == 4.25


@pytest.mark.parametrize("name", ["", "bf61", "int9_g128", "int4_g0", "x" * 10_000, "fp8_e9m9"])
def test_unknown_names_are_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        get(name)
    assert len(str(caught.value)) < 300


def test_near_names_are_offered() -> None:
    with pytest.raises(UnknownName, match="bfloat16"):
        get("bflot16")


@pytest.mark.parametrize(("bits", "group", "zero"), [(0, 128, 0), (9, 128, 0), (4, 0, 0), (4, 128, -1), (4, 128, 64)])
def test_impossible_groups_are_refused(bits: int, group: int, zero: int) -> None:
    with pytest.raises(InputError):
        int_group(bits, group, zero_point_bits=zero)


@pytest.mark.parametrize(
    ("name", "shape", "n_bytes"),
    [
        ("bf16", (3, 5), 30),
        ("bf16", (), 2),
        ("fp8_tensor", (8, 64, 64), 8 * 64 * 64 + 8 * 4),
        ("fp8_channel", (3, 5), 15 + 3 * 4),
        ("fp8_block", (129, 256), 129 * 256 + 4 * 4),
        ("int4_g128", (2, 130), 130 + 2 * 2 * 2),
        ("int4_g128_zp4", (1, 128), 64 + 3),
        ("nvfp4", (4, 64), 128 + 16 + 4),
        ("mxfp4", (33,), 17 + 2),
        ("nf4", (2, 33), 33 + 2 * 4),
        ("nf4_double_quant", (256, 64), 256 * 32 + 256 + 4 + 4),
        ("q4_0", (2, 33), 2 * 2 * 18),
        ("q4_k", (3, 512), 3 * 2 * 144),
    ],
)
def test_storage_bytes(name: str, shape: tuple[int, ...], n_bytes: int) -> None:
    assert get(name).storage_bytes(shape) == n_bytes


def test_gguf_sizes_are_ggmls() -> None:
    constants = pytest.importorskip("gguf.constants")
    for kind, (group, n_bytes) in constants.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # lives inside kernels only, and its size there is another
            continue
        name = {"NVFP4": "gguf_nvfp4", "F16": "fp16"}.get(kind.name, kind.name)
        columns = 4 * group
        assert get(name).storage_bytes((3, columns)) == 3 * columns // group * n_bytes, kind.name


def test_storage_broadcasts_over_plans() -> None:
    tp = np.array([1, 2, 4, 8])
    found = get("int4_g128")
    rows = 1024 // tp
    assert found.storage_bytes((rows, 4096)).tolist() == [found.storage_bytes((int(row), 4096)) for row in rows]


@given(
    st.sampled_from(names()),
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_storage_never_undercuts_the_elements_and_grows_with_rows(name: str, shape: list[int], more: int) -> None:
    found: Format = get(name)
    elements = int(np.prod(shape))
    assert found.storage_bytes(tuple(shape)) * 8 >= elements * found.bits - 1e-6
    larger = (shape[0] + more, *shape[1:])
    assert found.storage_bytes(larger) >= found.storage_bytes(tuple(shape))


def test_exported_names() -> None:
    import trilemma.formats as package

    assert package.__all__ == ["Format", "get", "int_group", "names"]
    assert package.get is get
    assert package.Format is Format
