"""What a network slower than those of measured runs carries of its rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.data.files import read_data
from trilemma.timing.training_collectives import Fabric


def slow_wire() -> Mapping[str, Any]:
    """Share of a slow network's rate that collectives reach, as numbers with their source
    (data/coefficients/training_step.toml, ``slow_network``)."""
    row: Mapping[str, Any] = read_data("coefficients/training_step.toml")["slow_network"]
    return row


def over_slow_wire(bytes_per_s: float, fabric: Fabric) -> float:
    """``bytes_per_s`` of a far wire as coefficients have it, on a network slower than those that told them.

    What keeps collectives from the rate of fast rails are seconds beside the wire (launches, small messages, the
    framework's own work on each gather): these stay as they are, and a slower wire adds its own. A number. Source: as
    `slow_wire`.
    """
    usual = fabric.usual_far_bytes_per_s
    if not usual:
        return bytes_per_s
    beside = fabric.far_bytes_per_s / usual / bytes_per_s
    return 1 / (beside + (1 / fabric.far_bytes_per_s - 1 / usual) / float(slow_wire()["share"]))
