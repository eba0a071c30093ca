"""Casts and scales of the lab against the project's own bit-exact codecs and torch's slow way back."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from trilemma.formats.catalogue import get  # noqa: E402
from trilemma.formats.codecs import round_trip  # noqa: E402
from trilemma.formats.elements import decode, encode  # noqa: E402
from trilemma.precision.lab.casts import cast, largest_value  # noqa: E402
from trilemma.precision.lab.recipes import RECIPES, LabRecipe  # noqa: E402
from trilemma.precision.lab.scaling import (  # noqa: E402
    AmaxHistory,
    current_scale,
    hadamard,
    keep_in_blocks,
    keep_per_tensor,
)


def spread(count: int = 20_000, *, seed: int = 0) -> torch.Tensor:
    """Numbers over the whole range of FP8 and beyond, ties of E4M3 and E5M2 among them."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, generator=generator) * 2.0 ** torch.randint(-20, 18, (count,), generator=generator)
    edges = [0.0, -0.0, 448, 464, 464.1, -480, 57344, 61439, 61440, 2**-9, 2**-10, 1.5 * 2**-10, 2**-16, 2**-17, 1e-30]
    return torch.cat([numbers, torch.tensor(edges)])


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("overflow", ["saturate", "nan"])
def test_fp8_casts_are_those_of_the_codec(name: str, overflow: str) -> None:
    values = spread()
    expected = decode(encode(values.numpy(), get(name), overflow=overflow), get(name))
    np.testing.assert_array_equal(cast(values, name, overflow=overflow).numpy(), expected)


def test_nan_stays_nan() -> None:
    kept = cast(torch.tensor([1.0, math.nan, 1000.0]), "fp8_e4m3")
    assert kept[0] == 1
    assert math.isnan(kept[1])
    assert kept[2] == 448


def test_every_code_is_read_back_as_torch_does() -> None:
    for dtype, name in ((torch.float8_e4m3fn, "fp8_e4m3"), (torch.float8_e5m2, "fp8_e5m2")):
        values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        finite = values[values.isfinite()]
        assert torch.equal(cast(finite, name), finite)


def test_fp4_is_that_of_the_codec() -> None:
    values = torch.linspace(-8, 8, 4001)
    expected = decode(encode(values.numpy(), get("fp4_e2m1")), get("fp4_e2m1"))
    np.testing.assert_array_equal(cast(values, "fp4_e2m1").numpy(), expected)


@pytest.mark.parametrize("name", ["fp4_e2m1", "fp8_e4m3", "bf16"])
def test_stochastic_rounding_is_right_on_average(name: str) -> None:
    value = 1.0 + 0.3 * 2.0 ** -(get(name).mantissa_bits or 0)
    generator = torch.Generator().manual_seed(3)
    kept = cast(torch.full((40_000,), value), name, generator=generator)
    assert len(kept.unique()) == 2
    step = 2.0 ** -(get(name).mantissa_bits or 0)
    assert float(kept.mean()) == pytest.approx(value, abs=5 * step * math.sqrt(0.21 / 40_000))


def block_recipe(name: str, **settings: object) -> LabRecipe:
    return LabRecipe(**({"name": "x", "says": ""} | {k: getattr(RECIPES[name], k) for k in _COPIED} | settings))


_COPIED = ("forward", "backward", "scaling", "power_rule")


@pytest.mark.parametrize("rule", ["floor", "rceil"])
def test_mx_is_that_of_the_codec(rule: str) -> None:
    values = spread(64 * 320 - 15).reshape(64, 320)
    kept = keep_in_blocks(values, "fp8_e4m3", block_recipe("mxfp8", power_rule=rule), weight=False)
    np.testing.assert_array_equal(kept.values.numpy(), round_trip(values.numpy(), "mxfp8", power_rule=rule))


def test_nvfp4_of_activations_is_that_of_the_codec() -> None:
    values = torch.randn(64, 160, generator=torch.Generator().manual_seed(5))
    kept = keep_in_blocks(values, "fp4_e2m1", block_recipe("nvfp4-plain"), weight=False).values.numpy()
    expected = round_trip(values.numpy(), "nvfp4")
    # The codec multiplies by rounded reciprocals as kernels do: a number on a tie may fall to the other side.
    assert np.mean(np.isclose(kept, expected, rtol=1e-5)) > 0.999


@pytest.mark.parametrize("shape", [(300, 200), (64, 64), (128, 256)])
def test_blocks_fit_every_shape(shape: tuple[int, int]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    recipe = block_recipe("block")
    for weight in (False, True):
        kept = keep_in_blocks(values, "fp8_e4m3", recipe, weight=weight)
        assert kept.values.shape == kept.limit.shape == values.shape
        assert bool((values.abs() <= kept.limit * (1 + 1e-6)).all())
        assert float((kept.values - values).norm() / values.norm()) < 0.04
    loud = values.clone()
    loud[0, 0] = 1e6
    # Only the block of the outlier pays: a row under 1×128 scales, the rest of the tensor does not.
    kept_loud = keep_in_blocks(loud, "fp8_e4m3", recipe, weight=False).values
    assert torch.equal(kept_loud[1:], keep_in_blocks(values, "fp8_e4m3", recipe, weight=False).values[1:])


def test_weights_of_nvfp4_share_square_scales() -> None:
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(4))
    recipe = block_recipe("nvfp4")
    forward = keep_in_blocks(weight, "fp4_e2m1", recipe, weight=True).values
    backward = keep_in_blocks(weight.t(), "fp4_e2m1", recipe, weight=True).values.t()
    assert torch.equal(forward, backward)


def test_hadamard_leaves_products_alone_and_spreads_outliers() -> None:
    generator = torch.Generator().manual_seed(6)
    signs = torch.randint(0, 2, (16,), generator=generator) * 2.0 - 1
    one, other = torch.randn(64, 8, generator=generator), torch.randn(64, 4, generator=generator)
    one[3, 0] = 100
    mixed = hadamard(one, signs)
    assert torch.allclose(mixed.t() @ hadamard(other, signs), one.t() @ other, rtol=1e-4, atol=1e-3)
    assert float(mixed.abs().max()) < 40


def test_history_gives_transformer_engine_scales() -> None:
    history = AmaxHistory(length=3)
    assert history.scale(448.0, rule="max", margin=0) == 1
    for amax in (2.0, 8.0, 4.0):
        history.add(amax)
    assert history.scale(448.0, rule="max", margin=0) == 56
    assert history.scale(448.0, rule="most_recent", margin=0) == 112
    assert history.scale(448.0, rule="max", margin=2) == 14
    for _ in range(3):
        history.add(0.0)
    assert history.scale(448.0, rule="max", margin=0) == 1


def test_a_spike_after_a_quiet_phase_saturates_or_becomes_nan() -> None:
    history = AmaxHistory(length=16)
    history.add(1.0)
    spike = torch.tensor([0.5, 2.0])
    scale = history.scale(448.0, rule="max", margin=0)
    assert keep_per_tensor(spike, "fp8_e4m3", scale=scale, overflow="saturate").values[1] == 1
    assert math.isnan(keep_per_tensor(spike, "fp8_e4m3", scale=scale, overflow="nan").values[1])
    roomy = history.scale(448.0, rule="max", margin=1)
    assert keep_per_tensor(spike, "fp8_e4m3", scale=roomy, overflow="nan").values[1] == 2


def test_current_scale_fills_the_range() -> None:
    values = torch.tensor([0.1, -7.0])
    assert current_scale(values, "fp8_e5m2") == pytest.approx(largest_value("fp8_e5m2") / 7)
    assert current_scale(torch.zeros(3), "fp8_e4m3") == 1
    assert current_scale(torch.tensor([math.nan]), "fp8_e4m3") == 1
