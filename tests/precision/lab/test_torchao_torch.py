"""Casts and products of the lab beside torchao's emulations on a CPU."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchao")
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")

from trilemma.precision.lab.numerics import LowPrecisionProduct, Numerics  # noqa: E402
from trilemma.precision.lab.recipes import RECIPES, LabRecipe  # noqa: E402
from trilemma.precision.lab.scaling import keep_in_blocks  # noqa: E402

RULES = ("floor", "rceil")


def mode(rule: str) -> Any:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    return ScaleCalculationMode(rule)


def mx_recipe(rule: str, **settings: Any) -> LabRecipe:
    settings = {"forward": "fp8_e4m3", "backward": "fp8_e4m3", "scaling": "mx", "power_rule": rule} | settings
    return LabRecipe(name="x", says="", **settings)


def spread(rows: int, columns: int, *, seed: int = 0) -> Any:
    """Numbers whose groups of 32 have largest magnitudes over 40 powers of two."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-20, 20, (rows, columns // 32, 1), generator=generator)
    return (torch.randn(rows, columns // 32, 32, generator=generator) * 2.0**powers).reshape(rows, columns)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_mx_casts_are_those_of_torchao(rule: str, name: str) -> None:
    values = spread(256, 512)
    values[3, 32:64] = 0
    element = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[name]
    scales, codes = mx_tensor.to_mx(values, element, 32, mode(rule))
    theirs = mx_tensor.to_dtype(codes, scales, element, 32, torch.float32)
    ours = keep_in_blocks(values, name, mx_recipe(rule, forward=name, backward=name), weight=False).values
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rule", RULES)
def test_mx_products_are_those_of_torchao_emulated(rule: str) -> None:
    from torchao.prototype.moe_training.mxfp8_linear import mx_mm
    from torchao.prototype.mx_formats.config import MXFP8Dim0CastKernelChoice, MXFP8Dim1CastKernelChoice
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    x, weight, gradient = spread(128, 64), spread(96, 64, seed=1), spread(128, 96, seed=2)
    e4m3 = torch.float8_e4m3fn
    choices = (MXFP8Dim0CastKernelChoice.TORCH, MXFP8Dim1CastKernelChoice.TORCH)

    def theirs(one: Any, other: Any) -> Any:
        return mx_mm.apply(one, other, e4m3, e4m3, e4m3, 32, KernelPreference.EMULATED, *choices, mode(rule), False)

    def ours(one: Any, other: Any) -> Any:
        return LowPrecisionProduct.apply(one, other, "layer", Numerics(mx_recipe(rule), seed=0))

    for mine, other in zip(products(ours, x, weight, gradient), products(theirs, x, weight, gradient), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()))


def test_current_scaling_is_that_of_torchao_float8_emulated() -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    generator = torch.Generator().manual_seed(5)
    x, gradient = torch.randn(128, 64, generator=generator), 1e-4 * torch.randn(128, 96, generator=generator)
    layer = torch.nn.Sequential(torch.nn.Linear(64, 96, bias=False))
    weight = layer[0].weight.detach().clone()
    convert_to_float8_training(layer, config=Float8LinearConfig(emulate=True))
    seen = x.clone().requires_grad_()
    output = layer(seen)
    output.backward(gradient)
    theirs = (output.detach(), seen.grad, layer[0].weight.grad)

    def ours(one: Any, other: Any) -> Any:
        return LowPrecisionProduct.apply(one, other, "layer", Numerics(RECIPES["current"], seed=0))

    for mine, other in zip(products(ours, x, weight, gradient), theirs, strict=True):
        # Scales of torchao are rounded to FP32 before they multiply: single numbers on a tie fall to the other side.
        assert float((mine - other).norm() / other.norm()) < 1e-3


def products(multiply: Any, x: Any, weight: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """Output, gradient of x and gradient of the weight."""
    one, other = x.clone().requires_grad_(), weight.clone().requires_grad_()
    output = multiply(one, other)
    output.backward(gradient)
    return output.detach(), one.grad, other.grad
