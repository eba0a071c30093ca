"""Power as it is told while something runs: NVIDIA's cards by NVML, the processor by the kernel's counters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from trilemma.errors import InputError, shorten
from trilemma.machine import nvml
from trilemma.measuring.energy.window import EnergyWindow, by_card, energy_over

#: Seconds between two samples, and samples that are kept at most: a day.
EVERY_S, _MOST = 0.1, 864_000
_POWERCAP = Path("/sys/class/powercap")


class PowerSource(Protocol):
    """Something that tells watts by the name of a card."""

    cards: int

    def watts(self) -> Mapping[str, float]:
        """Now, or since the last call."""
        ...


class NvmlPower:
    """NVIDIA's cards, as NVML tells them."""

    def __init__(self) -> None:
        self._library = nvml.Library()
        self.cards = self._library.count

    def watts(self) -> Mapping[str, float]:
        return self._library.watts()


class ProcessorPower:
    """Packages of the processor, from the energy counters that Linux shows (RAPL): watts are means since the last call."""

    def __init__(self, folder: Path = _POWERCAP, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        found = sorted(folder.glob("intel-rapl:[0-9]*")) if folder.is_dir() else []
        # a package is intel-rapl:0; intel-rapl:0:0 are its cores, which it holds
        self._counters = [one for one in found if one.name.count(":") == 1 and (one / "energy_uj").is_file()]
        if not self._counters:
            raise InputError("no power is told here: neither an NVIDIA card nor the processor's counters (powercap)")
        self.cards = len(self._counters)
        self._last: dict[str, tuple[float, int]] = {}
        self.watts()

    def watts(self) -> Mapping[str, float]:
        found = {}
        for one in self._counters:
            try:
                counted, wraps = int((one / "energy_uj").read_text()), int((one / "max_energy_range_uj").read_text())
            except (OSError, ValueError):
                raise InputError(f"{one / 'energy_uj'} cannot be read; reading it takes root on most systems") from None
            now = self._now()
            before_s, before = self._last.get(one.name, (now, counted))
            if now > before_s:
                found[one.name] = ((counted - before) % max(wraps, 1)) / 1e6 / (now - before_s)
            self._last[one.name] = (now, counted)
        return found


def power_source() -> PowerSource:
    """The cards of this machine, else its processor. Raises `InputError` where nothing tells its power."""
    if nvml.present():
        return NvmlPower()
    return ProcessorPower()


class PowerSampler:
    """Samples beside a run: ``with PowerSampler(source) as power: …``, then ``power.window(start_s, end_s)``.

    Times are those of ``time.perf_counter``, which the load and the steps are timed with. A source that fails ends the samples;
    the window then has no figure, and says so.
    """

    def __init__(
        self,
        source: PowerSource,
        *,
        every_s: float = EVERY_S,
        cards: int | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._source, self._every_s, self._now = source, every_s, now
        self.cards = cards or source.cards
        self._samples: list[tuple[float, Mapping[str, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="power", daemon=True)
        self._started_s, self._ended = 0.0, ""

    def _sample(self) -> None:
        while len(self._samples) < _MOST:
            try:
                watts = self._source.watts()
            except Exception as error:  # whatever a driver raises, the run beside goes on
                self._ended = f"; the source ended: {shorten(str(error) or type(error).__name__)}"
                return
            if watts:
                self._samples.append((self._now(), watts))
            if self._over.wait(self._every_s):
                return

    def window(self, start_s: float | None = None, end_s: float | None = None) -> EnergyWindow:
        """The energy between two times, by default since the start until now."""
        start_s = self._started_s if start_s is None else start_s
        end_s = self._now() if end_s is None else end_s
        found = energy_over(by_card(list(self._samples)), start_s=start_s, end_s=end_s, cards=self.cards)
        return found if found.fault is None else replace(found, detail=found.detail + self._ended)

    def start(self) -> None:
        self._started_s = self._now()
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5.0)

    def __enter__(self) -> PowerSampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
