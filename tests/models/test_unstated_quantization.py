"""Quantisation that states a part of itself: what compressed-tensors takes for granted (its QuantizationArgs)."""

from __future__ import annotations

from typing import Any

import pytest

from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.quantized import read_quantization


def stored(**weights: Any) -> Format:
    config = {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
    }
    found = read_quantization(config, dtype=catalogue.get("bf16"))
    assert found is not None
    assert found.weight_format is not None
    return found.weight_format


@pytest.mark.parametrize(
    ("weights", "bits"),
    [
        # Without a strategy: a group size makes groups, −1 rows, none a scale for the whole tensor.
        ({"num_bits": 8, "type": "int"}, 8.0),
        ({"num_bits": 8, "type": "int", "group_size": 0}, 8.0),
        ({"num_bits": 8, "type": "float"}, 8.0),
        ({"num_bits": 4, "type": "int", "group_size": 128}, 4 + 16 / 128),
        ({"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False}, 4 + (16 + 4) / 128),
        ({"num_bits": 4, "type": "int", "group_size": 32}, 4 + 16 / 32),
        ({"num_bits": 4, "type": "int", "strategy": "channel"}, 4.0),
        ({"num_bits": 4, "type": "float", "group_size": 32}, 4 + 8 / 32),
        ({"num_bits": 4, "type": "float"}, 4 + 8 / 16),
        ({"num_bits": 4, "type": "float", "group_size": 16}, 4 + 8 / 16),
        ({"num_bits": 16, "type": "float"}, 16.0),
    ],
)
def test_bits_of_a_weight(weights: dict[str, Any], bits: float) -> None:
    assert stored(**weights).effective_bits == pytest.approx(bits, abs=0.01)


def test_a_scale_for_the_tensor_is_none_for_each_channel() -> None:
    assert stored(num_bits=8, type="int") == stored(num_bits=8, type="int", strategy="tensor")
    assert stored(num_bits=8, type="int") != stored(num_bits=8, type="int", strategy="channel")
    assert stored(num_bits=8, type="int", group_size=-1) == stored(num_bits=8, type="int", strategy="channel")
    assert stored(num_bits=8, type="float") == stored(num_bits=8, type="float", strategy="tensor")
