"""Codecs against the libraries people run: torch casts, torchao MX and NVFP4, bitsandbytes NF4, gguf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from trilemma.formats import codebooks  # noqa: E402
from trilemma.formats.catalogue import get  # noqa: E402
from trilemma.formats.codecs import dequantise, quantise  # noqa: E402
from trilemma.formats.elements import decode, encode  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

#: format: (torch type, what its cast makes of overflow in torch 2.13)
TORCH = {
    "fp8_e4m3": ("float8_e4m3fn", "saturate"),
    "fp8_e5m2": ("float8_e5m2", "inf"),
    "fp8_e4m3fnuz": ("float8_e4m3fnuz", "nan"),
    "fp8_e5m2fnuz": ("float8_e5m2fnuz", "nan"),
    "fp16": ("float16", "inf"),
    "bf16": ("bfloat16", "inf"),
}


@pytest.fixture(scope="module")
def patterns() -> np.ndarray:
    """Any FP32 pattern, and values around 1 at every magnitude that 8-bit floats know: 1.2 million."""
    rng = np.random.default_rng(2026)
    anything = rng.integers(0, 2**32, 600_000, dtype=np.uint32).view(np.float32)
    near = rng.standard_normal(600_000) * np.exp2(rng.integers(-20, 20, 600_000))
    return np.concatenate([anything, near.astype(np.float32)])


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    """A million normal values with magnitudes of rows from 1e-3 to 1e3 and one row of zeros."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal((1024, 1024)) * np.exp2(rng.uniform(-10, 10, (1024, 1)))
    values[5] = 0
    return values.astype(np.float32)


def same(codes: np.ndarray, others: np.ndarray, fmt: Any) -> bool:
    """Equal codes; NaN may be spelt in several ways."""
    values, theirs = decode(codes, fmt), decode(others, fmt)
    return bool(np.all((codes == others) | (np.isnan(values) & np.isnan(theirs))))


@pytest.mark.parametrize("name", sorted(TORCH))
def test_torch_casts(name: str, patterns: np.ndarray) -> None:
    kind, overflow = TORCH[name]
    fmt = get(name)
    unsigned = torch.uint8 if fmt.bits == 8 else torch.uint16
    theirs = torch.from_numpy(patterns).to(getattr(torch, kind)).view(unsigned).numpy()
    assert same(encode(patterns, fmt, overflow=overflow), theirs, fmt)


@pytest.mark.parametrize("name", [*sorted(TORCH), "e8m0"])
def test_every_code_reads_as_in_torch(name: str) -> None:
    fmt = get(name)
    codes = np.arange(2**fmt.bits, dtype=np.uint8 if fmt.bits == 8 else np.uint16)
    kind = getattr(torch, TORCH[name][0] if name in TORCH else "float8_e8m0fnu")
    theirs = torch.from_numpy(codes.copy()).view(kind).to(torch.float32).numpy()
    np.testing.assert_array_equal(decode(codes, fmt), theirs)


def test_e8m0_rounds_as_torch_above_its_least_power(patterns: np.ndarray) -> None:
    fmt = get("e8m0")
    normal = np.abs(patterns[np.abs(patterns) >= 2.0**-126])
    theirs = torch.from_numpy(normal).to(torch.float8_e8m0fnu).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encode(normal, fmt, overflow="nan"), theirs)


MX = {
    "mxfp8": "float8_e4m3fn",
    "mxfp8_e5m2": "float8_e5m2",
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": "float4_e2m1fn_x2",
}


@pytest.mark.parametrize("rule", ["floor", "rceil"])
@pytest.mark.parametrize("name", sorted(MX))
def test_torchao_mx(name: str, rule: str, weights: np.ndarray) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    kind = getattr(torch, MX[name], MX[name])
    mode = getattr(config.ScaleCalculationMode, rule.upper())
    tensor = torch.from_numpy(weights)
    scales, data = mx.to_mx(tensor, kind, 32, mode)
    ours = quantise(weights, name, power_rule=rule)
    np.testing.assert_array_equal(ours.scales, scales.view(torch.uint8).numpy())
    theirs = data.view(torch.uint8).numpy()
    if name == "mxfp4":
        theirs = np.stack([theirs & 15, theirs >> 4], axis=-1).reshape(weights.shape)
    np.testing.assert_array_equal(ours.codes, theirs)
    back = mx.MXTensor.to_mx(tensor, kind, 32, mode).dequantize(torch.float32).numpy()
    np.testing.assert_array_equal(dequantise(ours), back)


def test_torchao_mx_marks_groups_that_hold_nan(weights: np.ndarray) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    spoiled = weights[:32].copy()
    spoiled[3, 40], spoiled[4, 8] = np.nan, np.inf
    scales, data = mx.to_mx(torch.from_numpy(spoiled), torch.float8_e4m3fn, 32)
    ours = quantise(spoiled, "mxfp8")
    np.testing.assert_array_equal(ours.scales, scales.view(torch.uint8).numpy())
    assert same(ours.codes, data.view(torch.uint8).numpy(), get("fp8_e4m3"))


@pytest.mark.parametrize("two_level", [True, False])
def test_torchao_nvfp4(two_level: bool, weights: np.ndarray) -> None:
    nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    from dataclasses import replace

    tensor = torch.from_numpy(weights)
    scale = nvfp4.per_tensor_amax_to_scale(tensor.abs().max()) if two_level else None
    theirs = nvfp4.NVFP4Tensor.to_nvfp4(tensor, per_tensor_scale=scale)
    fmt = get("nvfp4") if two_level else replace(get("nvfp4"), tensor_bits=0)
    ours = quantise(weights, fmt)
    np.testing.assert_array_equal(ours.scales, theirs.scale.view(torch.uint8).numpy().reshape(1024, 64))
    packed = theirs.qdata.view(torch.uint8).numpy()
    np.testing.assert_array_equal(ours.codes, np.stack([packed & 15, packed >> 4], axis=-1).reshape(weights.shape))
    np.testing.assert_array_equal(dequantise(ours), theirs.dequantize(torch.float32).numpy())


@pytest.fixture(scope="module")
def bitsandbytes() -> Any:
    return pytest.importorskip("bitsandbytes.functional")


def test_bitsandbytes_nf4(bitsandbytes: Any, weights: np.ndarray) -> None:
    codes, state = bitsandbytes.quantize_4bit(torch.from_numpy(weights), quant_type="nf4")
    packed = codes.numpy().reshape(-1)
    ours = quantise(weights, "nf4")
    np.testing.assert_array_equal(ours.codes.reshape(-1), np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1))
    np.testing.assert_array_equal(ours.scales.reshape(-1), state.absmax.numpy())
    np.testing.assert_array_equal(dequantise(ours), bitsandbytes.dequantize_4bit(codes, state).numpy())


def test_bitsandbytes_double_quantisation(bitsandbytes: Any, weights: np.ndarray) -> None:
    codes, state = bitsandbytes.quantize_4bit(torch.from_numpy(weights), quant_type="nf4", compress_statistics=True)
    np.testing.assert_array_equal(codebooks.dynamic_map(), bitsandbytes.create_dynamic_map().numpy())
    ours = quantise(weights, "nf4_double_quant")
    assert ours.superblock is not None
    # The mean is summed in another order, so it is equal to FP32 rounding only; the rest is compared given the same mean.
    assert float(ours.superblock.offset) == pytest.approx(state.offset.item(), rel=1e-5)
    offset = np.float32(state.offset.item())
    plain = quantise(weights, "nf4").scales.reshape(-1)
    scales, level = codebooks.compress_scales(plain, 256, offset=offset)
    np.testing.assert_array_equal(level.largest, state.state2.absmax.numpy())
    theirs = state.absmax.numpy().reshape(-1)
    table = codebooks.dynamic_map()
    middles = (table[np.minimum(scales, theirs)] + table[np.minimum(scales, theirs) + 1]) / 2
    from_boundary = np.abs((plain - offset) / np.repeat(level.largest, 256) - middles)
    differs = scales != theirs
    assert from_boundary[differs].max(initial=0) < 2e-5
    assert differs.mean() < 1e-2
    back = bitsandbytes.dequantize_4bit(codes, state).numpy()
    rows_with_equal_scales = ~differs.reshape(1024, 16).any(axis=1)
    np.testing.assert_allclose(
        dequantise(ours)[rows_with_equal_scales], back[rows_with_equal_scales], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_torchao_symmetric_groups(bits: int, weights: np.ndarray) -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    tensor, block = torch.from_numpy(weights), (1, 128)
    scale, zero = primitives.choose_qparams_affine(
        tensor, primitives.MappingType.SYMMETRIC, block, torch.int8, low, high, eps=1e-30, scale_dtype=torch.float32
    )
    theirs = primitives.quantize_affine(tensor, block, scale, zero, torch.int8, low, high)
    ours = quantise(weights, f"int{bits}_g128_s32")
    used = weights.reshape(1024, 8, 128).any(axis=2)
    np.testing.assert_array_equal(ours.scales[used], scale.numpy().reshape(1024, 8)[used])
    # torchao multiplies by the rounded reciprocal where we divide: what lies exactly halfway (the largest value of every
    # group does, at 7.5 or 127.5 steps) may fall to either side, nothing else may.
    per_element = np.repeat(ours.scales, 128, axis=1)
    from_half = np.abs(np.abs(weights / per_element) % 1 - 0.5)
    differs = ours.codes != theirs.numpy()
    assert from_half[differs].max() < 2e-5
    assert np.abs(ours.codes.astype(int) - theirs.numpy().astype(int)).max() <= 1


GGUF = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


@pytest.mark.parametrize("name", GGUF)
def test_gguf_blocks_are_ggmls(name: str, weights: np.ndarray) -> None:
    gguf = pytest.importorskip("gguf")
    theirs = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(quantise(weights, name).codes, theirs)
