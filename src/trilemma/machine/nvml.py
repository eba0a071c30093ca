"""NVIDIA's cards by their library (extra ``nvml``): clocks, power, what holds clocks down, errors of memory, links."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError, shorten

#: Bits of ``nvmlClocksEventReasons`` (nvml.h), and whether they are faults or what a card does by itself.
_REASONS = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
_FAULTS = ("hardware slowdown", "heat (software)", "heat (hardware)", "power brake")


@dataclass(frozen=True, kw_only=True, slots=True)
class CardState:
    """One card as NVML tells it; None where it does not. ``held_down_by`` names what keeps clocks below their limit."""

    card: str
    name: str
    sm_mhz: int | None = None
    sm_most_mhz: int | None = None
    memory_mhz: int | None = None
    watts: float | None = None
    watts_limit: float | None = None
    celsius: int | None = None
    held_down_by: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    pcie_lanes_most: int | None = None
    nvlinks: int | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """What makes a measurement of this card no measurement of its kind."""
        found = [one for one in self.held_down_by if one in _FAULTS]
        if self.ecc_uncorrected:
            found.append(f"{self.ecc_uncorrected} uncorrected memory errors")
        if self.pcie_lanes and self.pcie_lanes_most and self.pcie_lanes < self.pcie_lanes_most:
            found.append(f"{self.pcie_lanes} of {self.pcie_lanes_most} PCIe lanes")
        return tuple(found)


def present() -> bool:
    """Whether the library is installed and finds a card."""
    if importlib.util.find_spec("pynvml") is None:
        return False
    try:
        return Library().count > 0
    except InputError:
        return False


class Library:
    """The library, begun. Raises `InputError` where it is not there or there is no driver."""

    def __init__(self) -> None:
        try:
            library: Any = importlib.import_module("pynvml")
        except ImportError:
            raise InputError("NVIDIA's cards are asked by nvidia-ml-py; pip install 'trilemma[nvml]'") from None
        self._nvml = library
        try:
            library.nvmlInit()
            self.count = int(library.nvmlDeviceGetCount())
            self._handles = [library.nvmlDeviceGetHandleByIndex(at) for at in range(self.count)]
        except library.NVMLError as error:
            raise InputError(f"NVML: {shorten(str(error))}; is the driver loaded?") from None

    def watts(self) -> Mapping[str, float]:
        """What each card draws, by its number."""
        return {str(at): self._nvml.nvmlDeviceGetPowerUsage(handle) / 1e3 for at, handle in enumerate(self._handles)}

    def states(self) -> tuple[CardState, ...]:
        return tuple(self._state(str(at), handle) for at, handle in enumerate(self._handles))

    def _state(self, card: str, handle: Any) -> CardState:
        library = self._nvml

        def told(function: str, *words: Any) -> Any:
            """None where this card or this driver has no such thing."""
            try:
                return getattr(library, function)(handle, *words)
            except (library.NVMLError, AttributeError):
                return None

        name = told("nvmlDeviceGetName") or ""
        reasons = told("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # the name before driver 535
            reasons = told("nvmlDeviceGetCurrentClocksThrottleReasons")
        return CardState(
            card=card,
            name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
            sm_mhz=told("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
            sm_most_mhz=told("nvmlDeviceGetMaxClockInfo", library.NVML_CLOCK_SM),
            memory_mhz=told("nvmlDeviceGetClockInfo", library.NVML_CLOCK_MEM),
            watts=_scaled(told("nvmlDeviceGetPowerUsage")),
            watts_limit=_scaled(told("nvmlDeviceGetEnforcedPowerLimit")),
            celsius=told("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU),
            held_down_by=tuple(word for bit, word in _REASONS.items() if (reasons or 0) & bit),
            ecc_uncorrected=told(
                "nvmlDeviceGetTotalEccErrors",
                library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                library.NVML_VOLATILE_ECC,
            ),
            pcie_generation=told("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_lanes=told("nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_lanes_most=told("nvmlDeviceGetMaxPcieLinkWidth"),
            nvlinks=_links(lambda at: told("nvmlDeviceGetNvLinkState", at)),
        )


def _scaled(milliwatts: Any) -> float | None:
    return None if milliwatts is None else float(milliwatts) / 1e3


def _links(state: Callable[[int], Any]) -> int | None:
    """NVLinks that are up, of the eighteen that a card has at most; None where it has none."""
    found = [state(at) for at in range(18)]
    told = [one for one in found if one is not None]
    return sum(map(int, told)) if told else None
