"""Accelerator files: TOML from this package or from a user, read strictly. A file is data and may be hostile."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator, Figure, Link
from trilemma.intervals import Interval
from trilemma.quantities import GIB, MIB

#: A generous bound: the largest file shipped has about 8 kB.
MAX_FILE_BYTES = 128 * 1024
_MAX_TEXT = 2000
_MAX_LIST = 64

#: key → the least and greatest value that any machine of this decade could have, in the unit of the key.
_RANGES: dict[str, tuple[float, float]] = {
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
_PEAK_RANGE = (1e8, 1e19)
_FACT_RANGE = (0.0, 1e18)
_SECTIONS: dict[str, set[str]] = {
    "": {
        "name", "vendor", "architecture", "compute_capability", "label_gb", "label_options_gb", "aliases", "device_names",
        "hardware_formats", "fp8_flavour", "unified_memory", "gpu_cores", "launched", "notes",
        "memory", "peak_flops", "sparse_peak_flops", "link", "pcie", "node", "power", "price", "facts",
    },
    "memory": {
        "type", "inline_ecc", "label_gb", "nvml_total_mib", "runtime_total_bytes", "bandwidth_bytes_per_s",
    },
    "link": {"name", "bytes_per_s", "domain", "domain_in_common_use"},
    "pcie": {"generation", "lanes"},
    "node": {"gpus", "shape", "network_bytes_per_s"},
    "power": {"tdp_w", "all_in_w"},
    "price": {"usd_per_hour_low", "usd_per_hour_high", "source", "as_of"},
}  # fmt: skip
#: Formats that may have a peak; vector rates (fp64, fp32) among them.
PEAK_FORMATS = (
    "fp64", "fp64_matrix", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "mxfp6", "nvfp4", "mxfp4", "int8", "int4",
)  # fmt: skip


def read_accelerator(path: Path) -> Accelerator:
    """The accelerator that the TOML file at ``path`` describes; its id is the file's name.

    Raises `InputError` naming file and key for a file that is missing, too large, not TOML, or holds an unknown key, a
    missing one, or a value that no accelerator can have.
    """
    return parse_accelerator(read_text(path), name=path.stem, where=str(path))


def read_text(path: Path) -> str:
    """The text of a data file, bounded. Raises `InputError`."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read accelerator file {shorten(str(path))}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"accelerator file {shorten(str(path))} is larger than {MAX_FILE_BYTES // 1024} KiB")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InputError(f"accelerator file {shorten(str(path))} is not UTF-8 text") from None


def parse_toml(text: str, *, where: str) -> dict[str, Any]:
    """``text`` as TOML. Raises `InputError` for anything that is not, deep nesting and huge numbers included."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shorten(where)} is not valid TOML: {shorten(str(error))}") from None


def parse_accelerator(text: str, *, name: str, where: str) -> Accelerator:
    """As `read_accelerator`, from text; ``name`` becomes the id and ``where`` is named in errors."""
    document = parse_toml(text, where=where)
    root = _Table(document, where=where, section="")
    memory = root.table("memory")
    link, pcie, node, power = (root.table(one, required=False) for one in ("link", "pcie", "node", "power"))
    nvml = memory.figure("nvml_total_mib", required=False)
    facts = dict(root.figures("facts", _FACT_RANGE, None))
    if (all_in := power.figure("all_in_w", required=False)) is not None:
        facts["all_in_w"] = all_in
    generation = pcie.figure("generation", required=False)
    interval, price = _price(root.table("price", required=False))
    accelerator = Accelerator(
        id=name,
        name=root.text("name"),
        vendor=root.text("vendor"),
        architecture=root.text("architecture"),
        compute_capability=root.number("compute_capability", required=False),
        label_gb=root.number("label_gb") or 0.0,
        label_options_gb=root.numbers("label_options_gb", _RANGES["label_gb"]),
        label_figure=memory.figure("label_gb", required=False),
        memory_type=memory.text("type", required=False),
        inline_ecc=memory.flag("inline_ecc"),
        nvml_total_bytes=nvml and _scaled(nvml, MIB),
        runtime_total_bytes=memory.figure("runtime_total_bytes", required=False),
        bandwidth_bytes_per_s=memory.need("bandwidth_bytes_per_s"),
        peak_flops=dict(root.figures("peak_flops", _PEAK_RANGE, PEAK_FORMATS)),
        sparse_peak_flops=dict(root.figures("sparse_peak_flops", _PEAK_RANGE, PEAK_FORMATS)),
        hardware_formats=root.texts("hardware_formats", known=PEAK_FORMATS),
        fp8_flavour=root.text("fp8_flavour", required=False, known=("ocp", "fnuz")) or None,
        link=_link(link),
        pcie_generation=generation,
        pcie_bytes_per_s=_pcie_bytes_per_s(generation, pcie.whole("lanes", default=16)),
        gpus_per_node=node.whole("gpus", default=8),
        node_shape=node.text("shape", required=False),
        node_bytes_per_s=node.figure("network_bytes_per_s", required=False),
        tdp_w=power.figure("tdp_w", required=False),
        usd_per_hour=interval,
        price_source=price.get("source", ""),
        price_as_of=price.get("as_of", ""),
        unified_memory=root.flag("unified_memory"),
        aliases=(*root.texts("aliases"), *root.texts("device_names")),
        facts=facts,
        gpu_cores=root.whole("gpu_cores", default=0) or None,
        launched=root.text("launched", required=False),
        notes=root.texts("notes"),
        source=where,
    )
    _check_whole(accelerator, where)
    return accelerator


def _check_whole(accelerator: Accelerator, where: str) -> None:
    """What no single key can show: figures that contradict each other."""
    nvml, runtime = accelerator.nvml_total_bytes, accelerator.runtime_total_bytes
    label = accelerator.label_gb
    for key, figure in (("nvml_total_mib", nvml), ("runtime_total_bytes", runtime)):
        if figure is not None and not 0.5 * label * 1e9 <= figure.value <= 1.05 * label * GIB:
            raise InputError(
                f"{shorten(where)}: memory.{key} {figure.value / GIB:.2f} GiB contradicts label_gb {label:g}"
            )
    if nvml is not None and runtime is not None and runtime.value > nvml.value * (1 + 1e-9):
        raise InputError(f"{shorten(where)}: memory.runtime_total_bytes exceeds memory.nvml_total_mib")
    for fmt, figure in accelerator.sparse_peak_flops.items():
        dense = accelerator.peak_flops.get(fmt)
        if dense is not None and dense.value > figure.value:
            raise InputError(f"{shorten(where)}: peak_flops.{fmt} exceeds the sparse figure; give dense peaks")
    if not accelerator.peak_flops:
        raise InputError(f"{shorten(where)}: [peak_flops] is empty; give at least one dense peak such as bf16")
    if "fp8" in accelerator.hardware_formats and "fp8" not in accelerator.peak_flops:
        raise InputError(f"{shorten(where)}: fp8 is in hardware_formats but has no peak_flops.fp8")


def _scaled(figure: Figure, factor: float) -> Figure:
    """``figure`` in another unit, its alternatives too."""
    return Figure(
        value=figure.value * factor,
        source=figure.source,
        as_of=figure.as_of,
        recalled=figure.recalled,
        why=figure.why,
        alternatives=tuple(_scaled(other, factor) for other in figure.alternatives),
    )


def _link(table: _Table) -> Link | None:
    if not table.present:
        return None
    return Link(
        name=table.text("name"),
        bytes_per_s=table.need("bytes_per_s"),
        domain=round(table.need("domain").value),
        domain_in_common_use=table.whole("domain_in_common_use", default=0),
    )


def _pcie_bytes_per_s(generation: Figure | None, lanes: int) -> Figure | None:
    if generation is None:
        return None
    from trilemma.hardware.fabrics import pcie_bytes_per_s

    rate = pcie_bytes_per_s(round(generation.value), lanes)
    return Figure(
        value=rate.value,
        source=f"PCIe {generation.value:g} x{lanes}: {generation.source}; {rate.source}",
        as_of=generation.as_of,
        recalled=generation.recalled,
    )


def _price(table: _Table) -> tuple[Interval | None, dict[str, str]]:
    """The range of list prices with its geometric mean as value: prices spread by factors, not by sums."""
    if not table.present:
        return None, {}
    low, high = table.number("usd_per_hour_low") or 0.0, table.number("usd_per_hour_high") or 0.0
    if low > high:
        raise InputError(f"{shorten(table.where)}: price.usd_per_hour_low exceeds usd_per_hour_high")
    value = min(max(math.sqrt(low * high), low), high)
    return Interval(value=value, low=low, high=high), {"source": table.text("source"), "as_of": table.text("as_of")}


class _Table:
    """One table of the file; every reader of a key names file, table and key when the value cannot be used."""

    def __init__(self, values: Any, *, where: str, section: str) -> None:
        self.where, self.section = where, section
        self.present = values is not None
        if not isinstance(values, Mapping | None):
            raise self.error("", "is not a table")
        self.values: Mapping[str, Any] = values or {}
        known = _SECTIONS.get(section)
        for key in self.values if known is not None else ():
            if key not in (known or ()):
                raise self.error(key, f"is not a known key; use one of {', '.join(sorted(known or ()))}")

    def error(self, key: str, problem: str) -> InputError:
        place = ".".join(part for part in (self.section, key) if part)
        return InputError(f"{shorten(self.where)}: {shorten(place)} {problem}")

    def table(self, key: str, *, required: bool = True) -> _Table:
        if required and key not in self.values:
            raise InputError(f"{shorten(self.where)}: table [{key}] is missing")
        return _Table(self.values.get(key), where=self.where, section=key)

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
        return None if value is None else self._checked(key, value, _RANGES[key])

    def whole(self, key: str, *, default: int) -> int:
        if key not in self.values:
            return default
        value = self._checked(key, self.values[key], _RANGES[key])
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
        return None if value is None else self._figure(key, value, bounds or _RANGES[key], nested=False)

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
        part = _Table(value, where=self.where, section=f"{self.section}.{key}")
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

    def _nested(self, key: str, index: int, item: Any) -> _Table:
        return _Table({key: item}, where=self.where, section=f"{self.section}[{index}]")
