"""Accelerator files: TOML from this package or from a user, read strictly. A file is data and may be hostile."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

from trilemma import outside_files
from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator, Figure, HostLink, Link
from trilemma.hardware.strict_tables import FACT_RANGE, PEAK_RANGE, RANGES, StrictTable
from trilemma.intervals import Interval
from trilemma.quantities import GIB, MIB

#: A generous bound: the largest file shipped has about 10 kB.
MAX_FILE_BYTES = 64 * 1024
#: Keys dotted this deep mean nothing here, and the TOML reader's time grows with the square of their depth.
_DEEP_KEY = re.compile(r"""(?:(?:[\w-]{1,64}|"[^"\n]{0,64}"|'[^'\n]{0,64}')[ \t]*\.[ \t]*){24}""")

#: What the id of a card of the catalogue looks like.
_ID = re.compile(r"[a-z0-9][a-z0-9.-]{0,80}")

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


def catalogue_file(id: str) -> Path:  # noqa: A002
    """Where the catalogue keeps the card of that id."""
    return Path(__file__).parent.parent / "data" / "accelerators" / f"{id}.toml"


def read_text(path: Path) -> str:
    """The text of a data file, bounded. Raises `InputError`."""
    return outside_files.read_text(path, most_bytes=MAX_FILE_BYTES, what="accelerator file", give="give a TOML file")


def parse_toml(text: str, *, where: str) -> dict[str, Any]:
    """``text`` as TOML. Raises `InputError` for anything that is not, deep nesting and huge numbers included."""
    if _DEEP_KEY.search(text):
        raise InputError(f"{shorten(where)} holds keys of absurd depth; give plain tables and keys")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shorten(where)} is not valid TOML: {shorten(str(error))}") from None


def parse_accelerator(text: str, *, name: str, where: str) -> Accelerator:
    """As `read_accelerator`, from text; ``name`` becomes the id and ``where`` is named in errors."""
    document = parse_toml(text, where=where)
    root = StrictTable(document, where=where, section="")
    memory = root.table("memory")
    link, pcie, node, power = (root.table(one, required=False) for one in ("link", "pcie", "node", "power"))
    host_link = root.table("host_link", required=False)
    nvml = memory.figure("nvml_total_mib", required=False)
    facts = dict(root.figures("facts", FACT_RANGE, None))
    if (all_in := power.figure("all_in_w", required=False)) is not None:
        facts["all_in_w"] = all_in
    generation = pcie.figure("generation", required=False)
    interval, price = _price(root.table("price", required=False))
    same = root.text("measured_as", required=False)
    if same and not (_ID.fullmatch(same) and catalogue_file(same).is_file()):
        raise InputError(
            f"{shorten(where)}: measured_as {shorten(same)} is no card of the catalogue; see trilemma hardware"
        )
    accelerator = Accelerator(
        id=same or name,
        measured=dict(root.figures("measured", FACT_RANGE, None)),
        measured_as=same,
        name=root.text("name"),
        vendor=root.text("vendor"),
        architecture=root.text("architecture"),
        compute_capability=root.number("compute_capability", required=False),
        label_gb=root.number("label_gb") or 0.0,
        label_options_gb=root.numbers("label_options_gb", RANGES["label_gb"]),
        label_figure=memory.figure("label_gb", required=False),
        memory_type=memory.text("type", required=False),
        inline_ecc=memory.flag("inline_ecc"),
        nvml_total_bytes=nvml and _scaled(nvml, MIB),
        runtime_total_bytes=memory.figure("runtime_total_bytes", required=False),
        bandwidth_bytes_per_s=memory.need("bandwidth_bytes_per_s"),
        peak_flops=dict(root.figures("peak_flops", PEAK_RANGE, PEAK_FORMATS)),
        sparse_peak_flops=dict(root.figures("sparse_peak_flops", PEAK_RANGE, PEAK_FORMATS)),
        hardware_formats=root.texts("hardware_formats", known=PEAK_FORMATS),
        fp8_flavour=root.text("fp8_flavour", required=False, known=("ocp", "fnuz")) or None,
        link=_link(link),
        pcie_generation=generation,
        pcie_bytes_per_s=_pcie_bytes_per_s(generation, pcie.whole("lanes", default=16)),
        host_link=_host_link(host_link),
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


def _link(table: StrictTable) -> Link | None:
    if not table.present:
        return None
    return Link(
        name=table.text("name"),
        bytes_per_s=table.need("bytes_per_s"),
        domain=round(table.need("domain").value),
        domain_in_common_use=table.whole("domain_in_common_use", default=0),
    )


def _host_link(table: StrictTable) -> HostLink | None:
    if not table.present:
        return None
    return HostLink(name=table.text("name"), bytes_per_s=table.need("bytes_per_s"))


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


def _price(table: StrictTable) -> tuple[Interval | None, dict[str, str]]:
    """The range of list prices with its geometric mean as value: prices spread by factors, not by sums."""
    if not table.present:
        return None, {}
    low, high = table.number("usd_per_hour_low") or 0.0, table.number("usd_per_hour_high") or 0.0
    if low > high:
        raise InputError(f"{shorten(table.where)}: price.usd_per_hour_low exceeds usd_per_hour_high")
    value = min(max(math.sqrt(low * high), low), high)
    return Interval(value=value, low=low, high=high), {"source": table.text("source"), "as_of": table.text("as_of")}
