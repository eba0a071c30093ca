"""What formats keep: anchors that follow from theory, and the order that practice knows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.formats.catalogue import names
from trilemma.formats.quality import DATA_KINDS, MEASURES, measure, sample, sqnr_db


def test_sqnr_is_ten_log_of_the_energy_ratio() -> None:
    values = np.array([3.0, 4.0])
    assert sqnr_db(values, np.array([3.0, 4.5])) == pytest.approx(20.0)
    assert sqnr_db(values, values) == math.inf
    assert math.isnan(sqnr_db(np.zeros(2), np.zeros(2)))
    with pytest.raises(InputError, match="differ"):
        sqnr_db(values, np.zeros(3))


@pytest.mark.parametrize("kind", sorted(DATA_KINDS))
def test_samples_are_the_same_every_time(kind: str) -> None:
    assert sample(kind) is sample(kind)
    assert sample(kind).shape == (128, 1024)
    with pytest.raises(InputError):
        sample("uniform")


#: dB on standard normal data, measured with torchao 0.18 and bitsandbytes 0.50 tensors of the same formats.
PUBLISHED = {
    "mxfp8": 30.5,
    "mxfp8_e5m2": 25.4,
    "mxfp6_e3m2": 25.4,
    "mxfp6_e2m3": 30.9,
    "mxfp4": 18.7,
    "nvfp4": 20.4,
    "nf4": 20.73,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_normal_data_as_other_libraries_measure_it(name: str) -> None:
    quality = measure(name)
    assert quality is not None
    assert quality["normal"] == pytest.approx(PUBLISHED[name], abs=0.25)


def test_each_bit_of_an_integer_is_worth_six_decibels() -> None:
    kept = [measure(f"int{bits}_g128")["normal"] for bits in (3, 4, 6, 8)]  # type: ignore[index]
    assert np.diff(kept) / [1, 2, 2] == pytest.approx(6.02, abs=0.7)


def test_outliers_hurt_integers_and_leave_floats_alone() -> None:
    integer, small_float = measure("int8_channel"), measure("fp8_channel")
    assert integer is not None
    assert small_float is not None
    assert integer["normal"] > small_float["normal"] + 5
    assert integer["beside outliers"] < small_float["beside outliers"] - 5


@pytest.mark.parametrize("name", names())
def test_every_format_is_measured_or_left_out_for_a_reason(name: str) -> None:
    quality = measure(name)
    unscaled = name.startswith(("int", "uint")) and "_" not in name
    unwritten = name.startswith(("iq1", "iq2", "iq3", "q1", "q8_k"))
    if unscaled or unwritten or name == "e8m0":
        assert quality is None
    else:
        assert quality is not None
        assert tuple(quality) == MEASURES
        assert quality["normal"] > (0 if name.startswith("tq") else 3)
