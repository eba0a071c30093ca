"""Every scaled number format can be asked for by name, and runs in the units of the card that have it."""

from __future__ import annotations

import json

import pytest

from trilemma.cli.main import main
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.models.quantized import find_scheme, requantize
from trilemma.models.resolve import load_model
from trilemma.timing.operators import computed_formats


def test_every_scaled_format_is_a_scheme() -> None:
    for name in catalogue.names():
        fmt = catalogue.get(name)
        if fmt.granularity != "none" and fmt.kind != "packed":
            scheme = find_scheme(name)
            assert scheme.quantises, name
            if scheme.name == name:
                assert scheme.format == fmt


def test_mxfp6_weights_take_six_and_a_quarter_bits(capsys: pytest.CaptureFixture[str]) -> None:
    """6 bits and an 8-bit scale per 32 (OCP MX v1.0, section 5.3) of linear layers; embedding and head stay in 16 bits."""
    assert main(["fit", "llama-3.1-70b", "--gpu", "mi355x", "--precision", "mxfp6", "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["memory"]["items"][0]
    model = load_model("llama-3.1-70b")
    linear = sum(tensor.elements for tensor in model.tensors if tensor.quantizable and tensor.part == "layers")
    rest = sum(tensor.elements for tensor in model.tensors) - linear
    assert weights["bytes"] == pytest.approx(linear * 6.25 / 8 + rest * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("card", "computed_in"),
    [("mi355x", "mxfp6"), ("b200-sxm", "mxfp6"), ("trainium3", "fp8"), ("h100-sxm", "bf16"), ("mi300x", "bf16")],
)
def test_mxfp6_runs_in_its_own_units_the_next_wider_of_its_kind_or_sixteen_bits(card: str, computed_in: str) -> None:
    stored = requantize(load_model("llama-3.1-8b"), "mxfp6")
    assert dict(computed_formats(stored, find(card)))[catalogue.get("mxfp6")] == computed_in
