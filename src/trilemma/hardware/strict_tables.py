"""Tables of a data file, read strictly: every reader of a key names file, table and key when its value cannot be used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Figure
from trilemma.quantities import MIB

_MAX_TEXT = 2000
_MAX_LIST = 64

#: key → the least and greatest value that any machine of this decade could have, in the unit of the key.
RANGES: dict[str, tuple[float, float]] = {
    "label_gb": (0.25, 1e5),
    "nvml_total_mib": (64, 1e8),
    "runtime_total_bytes": (64 * MIB, 1e14),
    "bandwidth_bytes_per_s": (1e8, 1e15),
    "bytes_per_s": (1e7, 1e14),
    "network_bytes_per_s": (1e7, 1e13),
    "domain": (1, 2**20),
    "domain_in_common_use": (1, 2**20),
    "generation": (1, 8),
    "lanes": (1, 32),
    "gpus": (1, 4096),
    "gpu_cores": (1, 1e5),
    "tdp_w": (1, 1e5),
    "all_in_w": (1, 1e6),
    "usd_per_hour_low": (1e-4, 1e5),
    "usd_per_hour_high": (1e-4, 1e5),
    "compute_capability": (1, 100),
}
PEAK_RANGE = (1e8, 1e19)
FACT_RANGE = (0.0, 1e18)
SECTIONS: dict[str, set[str]] = {
    "": {
        "name", "vendor", "architecture", "compute_capability", "label_gb", "label_options_gb", "aliases", "device_names",
        "hardware_formats", "fp8_flavour", "unified_memory", "gpu_cores", "launched", "notes",
        "memory", "peak_flops", "sparse_peak_flops", "link", "host_link", "pcie", "node", "power",
        "price", "facts", "measured", "measured_as",
    },
    "memory": {
        "type", "inline_ecc", "label_gb", "nvml_total_mib", "runtime_total_bytes", "bandwidth_bytes_per_s",
    },
    "link": {"name", "bytes_per_s", "domain", "domain_in_common_use"},
    "host_link": {"name", "bytes_per_s"},
    "pcie": {"generation", "lanes"},
    "node": {"gpus", "shape", "network_bytes_per_s"},
    "power": {"tdp_w", "all_in_w"},
    "price": {"usd_per_hour_low", "usd_per_hour_high", "source", "as_of"},
}  # fmt: skip


class StrictTable:
    """One table of a data file; an absent one reads as empty (``present`` is False)."""

    def __init__(self, values: Any, *, where: str, section: str) -> None:
        self.where, self.section = where, section
        self.present = values is not None
        if not isinstance(values, Mapping | None):
            raise self.error("", "is not a table")
        self.values: Mapping[str, Any] = values or {}
        known = SECTIONS.get(section)
        for key in self.values if known is not None else ():
            if key not in (known or ()):
                raise self.error(key, f"is not a known key; use one of {', '.join(sorted(known or ()))}")

    def error(self, key: str, problem: str) -> InputError:
        place = ".".join(part for part in (self.section, key) if part)
        return InputError(f"{shorten(self.where)}: {shorten(place)} {problem}")

    def table(self, key: str, *, required: bool = True) -> StrictTable:
        if required and key not in self.values:
            raise InputError(f"{shorten(self.where)}: table [{key}] is missing")
        return StrictTable(self.values.get(key), where=self.where, section=key)

    def get(self, key: str, required: bool) -> Any:
        if required and key not in self.values:
            raise self.error(key, "is missing")
        return self.values.get(key)

    def text(self, key: str, *, required: bool = True, known: tuple[str, ...] = ()) -> str:
        value = self.get(key, required)
        if value is None:
            return ""
        text = value.isoformat() if hasattr(value, "isoformat") else value
        if not isinstance(text, str) or not text.strip() or len(text) > _MAX_TEXT or not text.isprintable():
            raise self.error(key, f"{shorten(repr(value))} is not a line of text")
        if known and text not in known:
            raise self.error(key, f"{shorten(repr(value))} is not one of {', '.join(known)}")
        return text

    def texts(self, key: str, *, known: tuple[str, ...] = ()) -> tuple[str, ...]:
        return tuple(self._nested(key, index, item).text(key, known=known) for index, item in self._items(key))

    def numbers(self, key: str, bounds: tuple[float, float]) -> tuple[float, ...]:
        return tuple(self._checked(f"{key}[{index}]", item, bounds) for index, item in self._items(key))

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, f"{shorten(repr(value))} is neither true nor false")
        return value

    def number(self, key: str, *, required: bool = True) -> float | None:
        value = self.get(key, required)
        return None if value is None else self._checked(key, value, RANGES[key])

    def whole(self, key: str, *, default: int) -> int:
        if key not in self.values:
            return default
        value = self._checked(key, self.values[key], RANGES[key])
        if value != int(value):
            raise self.error(key, f"{value:g} is not a whole number")
        return int(value)

    def need(self, key: str) -> Figure:
        self.get(key, True)
        figure = self.figure(key, required=True)
        assert figure is not None
        return figure

    def figure(self, key: str, *, required: bool, bounds: tuple[float, float] | None = None) -> Figure | None:
        value = self.get(key, required)
        return None if value is None else self._figure(key, value, bounds or RANGES[key], nested=False)

    def figures(
        self, section: str, bounds: tuple[float, float], known: tuple[str, ...] | None
    ) -> list[tuple[str, Figure]]:
        table = self.table(section, required=section == "peak_flops")
        if len(table.values) > _MAX_LIST:
            raise table.error("", f"holds more than {_MAX_LIST} figures")
        for key in table.values:
            if known is not None and key not in known:
                raise table.error(key, f"is not a known format; use one of {', '.join(known)}")
        return [(key, table._figure(key, value, bounds, nested=False)) for key, value in table.values.items()]

    def _figure(self, key: str, value: Any, bounds: tuple[float, float], *, nested: bool) -> Figure:
        if not isinstance(value, Mapping):
            raise self.error(key, 'is not a figure such as { value = 1.0, source = "datasheet" }')
        unknown = set(value) - {"value", "source", "as_of", "recalled", "why", "alternatives"}
        if unknown or (nested and "alternatives" in value):
            raise self.error(key, f"holds {shorten(', '.join(sorted(unknown)) or 'nested alternatives')}")
        part = StrictTable(value, where=self.where, section=f"{self.section}.{key}")
        others = value.get("alternatives", [])
        if not isinstance(others, list) or len(others) > _MAX_LIST:
            raise self.error(key, "alternatives is not a short list")
        return Figure(
            value=self._checked(key, part.get("value", True), bounds),
            source=part.text("source"),
            as_of=part.text("as_of", required=False),
            recalled=part.flag("recalled"),
            why=part.text("why", required=False),
            alternatives=tuple(self._figure(key, other, bounds, nested=True) for other in others),
        )

    def _checked(self, key: str, value: Any, bounds: tuple[float, float]) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, f"{shorten(repr(value))} is not a number")
        low, high = bounds
        if not low <= value <= high:
            raise self.error(key, f"{shorten(repr(value))} is out of range; {low:g} to {high:g} is possible")
        return float(value)

    def _items(self, key: str) -> list[tuple[int, Any]]:
        values = self.values.get(key, [])
        if not isinstance(values, list) or len(values) > _MAX_LIST:
            raise self.error(key, "is not a short list")
        return list(enumerate(values))

    def _nested(self, key: str, index: int, item: Any) -> StrictTable:
        return StrictTable({key: item}, where=self.where, section=f"{self.section}[{index}]")
