"""NVIDIA's library, played by a module of the same functions: nobody's card is in this machine."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from trilemma.errors import InputError
from trilemma.machine import nvml
from trilemma.measuring.energy.sampler import NvmlPower
from trilemma.report.measured_card import card_words


class NotSupported(Exception):
    pass


def library(**changed: object) -> ModuleType:
    """Two cards: an H100 under a power cap, and one that tells less."""
    made = ModuleType("pynvml")
    made.NVMLError = NotSupported
    made.NVML_CLOCK_SM, made.NVML_CLOCK_MEM, made.NVML_TEMPERATURE_GPU = 1, 2, 0
    made.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, made.NVML_VOLATILE_ECC = 1, 0
    made.nvmlInit = lambda: None
    made.nvmlDeviceGetCount = lambda: 2
    made.nvmlDeviceGetHandleByIndex = lambda at: at
    told = {
        "nvmlDeviceGetName": ["NVIDIA H100 80GB HBM3", b"Tesla P40"],
        "nvmlDeviceGetClockInfo": [{1: 1590, 2: 2619}, None],
        "nvmlDeviceGetMaxClockInfo": [{1: 1980}, None],
        "nvmlDeviceGetPowerUsage": [698_500, 51_000],
        "nvmlDeviceGetEnforcedPowerLimit": [700_000, None],
        "nvmlDeviceGetTemperature": [{0: 71}, {0: 40}],
        "nvmlDeviceGetCurrentClocksEventReasons": [0x4 | 0x40, None],
        "nvmlDeviceGetTotalEccErrors": [3, None],
        "nvmlDeviceGetCurrPcieLinkGeneration": [5, 3],
        "nvmlDeviceGetCurrPcieLinkWidth": [8, 16],
        "nvmlDeviceGetMaxPcieLinkWidth": [16, 16],
        "nvmlDeviceGetNvLinkState": [dict.fromkeys(range(18), 1) | {17: 0}, None],
    } | changed

    def function(name: str):
        def asked(handle: int, *words: int):
            found = told[name][handle]
            if found is None:
                raise NotSupported("not supported")
            return found[words[0]] if isinstance(found, dict) else found

        return asked

    for name in told:
        setattr(made, name, function(name))
    return made


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library())
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())


@pytest.mark.usefixtures("cards")
def test_the_state_of_cards_and_what_makes_them_no_measure() -> None:
    first, second = nvml.Library().states()
    assert (first.name, first.sm_mhz, first.sm_most_mhz, first.memory_mhz) == (
        "NVIDIA H100 80GB HBM3",
        1590,
        1980,
        2619,
    )
    assert (first.watts, first.watts_limit, first.celsius) == (698.5, 700.0, 71)
    assert first.held_down_by == ("power cap", "heat (hardware)")
    assert first.nvlinks == 17
    assert first.faults == ("heat (hardware)", "3 uncorrected memory errors", "8 of 16 PCIe lanes")
    assert (second.name, second.sm_mhz, second.nvlinks, second.faults) == ("Tesla P40", None, None, ())
    words = card_words(first)
    assert words.startswith("card 0, 1,590 MHz of 1,980, 698 W of 700, 71 °C, clocks held down by power cap, heat")
    assert "not as its kind is: heat (hardware), 3 uncorrected" in words
    assert card_words(second) == "card 1, 51 W, 40 °C"


@pytest.mark.usefixtures("cards")
def test_power_of_each_card() -> None:
    source = NvmlPower()
    assert source.cards == 2
    assert source.watts() == {"0": 698.5, "1": 51.0}
    assert nvml.present()


def test_older_drivers_call_it_throttling(monkeypatch: pytest.MonkeyPatch) -> None:
    old = library(nvmlDeviceGetCurrentClocksThrottleReasons=[0x20, 0x1])
    del old.nvmlDeviceGetCurrentClocksEventReasons
    monkeypatch.setitem(sys.modules, "pynvml", old)
    assert [one.held_down_by for one in nvml.Library().states()] == [("heat (software)",), ("idle",)]


def test_no_driver_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = library()

    def fails() -> None:
        raise NotSupported("Driver Not Loaded")

    broken.nvmlInit = fails
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    with pytest.raises(InputError, match="NVML: Driver Not Loaded; is the driver loaded"):
        nvml.Library()
    assert not nvml.present()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(InputError, match=r"pip install 'trilemma\[nvml\]'"):
        nvml.Library()
