"""Hosts of accelerators: how fast their memory is, as stated, by name, or assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trilemma.errors import InputError, UnknownName, shorten
from trilemma.hardware.accelerator import Accelerator, Figure
from trilemma.intervals import Interval
from trilemma.quantities import GIB

if TYPE_CHECKING:
    from trilemma.hardware.cluster import Cluster

_FILE = Path(__file__).parent.parent / "data" / "hosts" / "hosts.toml"
_MODULES = re.compile(r"(ddr[345])-?(\d{3,5})x(\d{1,2})")
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,6})?)(?:gb/s)?")
#: No host reads its memory slower or faster than this.
_LEAST, _MOST = 1e9, 20e12
_PCIE_OF_DDR5 = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One machine around accelerators. ``bytes_per_s`` is what all channels of its memory move, ``assumed`` where unstated.

    ``interval`` holds the machines that it may be: a point where it is stated. ``low_bytes`` to ``high_bytes`` is how much
    memory such machines have, None where nothing is known of it.
    """

    name: str
    bytes_per_s: Figure
    interval: Interval
    assumed: bool = False
    low_bytes: float | None = None
    high_bytes: float | None = None


def parse_host(text: str) -> Host:
    """A host as the user names it: ``DDR5-5600x2`` (transfers x channels), ``epyc-9004``, ``89.6`` or ``89.6GB/s``.

    Raises `InputError` for a bandwidth that no host has, `UnknownName` for a name that is none.
    """
    word = text.strip().lower().replace(" ", "")
    rate = _RATE.fullmatch(word)
    if rate is not None:
        return _stated(text.strip(), Figure(value=float(rate.group(1)) * 1e9, source="given"))
    if _MODULES.fullmatch(word):
        return _stated(word.upper().replace("X", "x"), _of_modules(word))
    row = next((row for row in _facts()["host"] if word in row["names"]), None)
    if row is None:
        known = [name for row in _facts()["host"] for name in row["names"]]
        raise UnknownName("host", shorten(text), known, hint="such as DDR5-5600x2, epyc-9004, or 89.6 (GB/s)")
    return _stated(word, _figure(row))


def host_of(accelerator: Accelerator) -> Host:
    """The host that is assumed around ``accelerator`` where none is stated.

    Where host and accelerator share one memory it is that; a superchip has its own processor; a card of workstations stands
    in a desktop, any other in a server of its years.
    """
    if accelerator.unified_memory:
        figure = accelerator.bandwidth_bytes_per_s
        return Host(name=accelerator.name, bytes_per_s=figure, interval=_point(figure.value))
    row = _facts()["assumed"][_kind_of(accelerator)]
    named = next((host for host in _facts()["host"] if row["memory"] in host["names"]), None)
    figure = _figure(named) if named is not None else _of_modules(row["memory"].lower(), source=row["source"])
    interval = Interval(value=figure.value, low=float(row["low_bytes_per_s"]), high=float(row["high_bytes_per_s"]))
    return Host(
        name=row["memory"], bytes_per_s=figure, interval=interval, assumed=True,
        low_bytes=row["low_gib"] * GIB, high_bytes=row["high_gib"] * GIB,
    )  # fmt: skip


def node_of(cluster: Cluster) -> Host:
    """The host of one training node: as stated, else as `host_of` assumes, with both sockets of a board of eight.

    A job on a part of the board's cards may have but that part of the memory (half at least: boards of four have that)."""
    host = cluster.around
    row = _facts()["board"]
    if not host.assumed or cluster.accelerator.gpus_per_node < row["least_gpus"]:
        return host
    part = min(min(cluster.gpus_per_node, cluster.gpus) / row["least_gpus"], 1.0)
    sockets = float(row["sockets"])
    return replace(
        host, name=f"{row['sockets']} sockets of {host.name}", interval=host.interval.scaled(sockets),
        bytes_per_s=replace(host.bytes_per_s, value=host.bytes_per_s.value * sockets),
        low_bytes=row["low_gib"] * GIB * max(part, 0.5), high_bytes=row["high_gib"] * GIB,
    )  # fmt: skip


def _kind_of(accelerator: Accelerator) -> str:
    """What stands around ``accelerator``: its superchip's own processor, a desktop, or a server of its years."""
    if accelerator.host_link is not None:
        return "superchip"
    if _is_for_desks(accelerator):
        return "workstation"
    return "server_ddr5" if _is_recent(accelerator) else "server_ddr4"


def _is_for_desks(accelerator: Accelerator) -> bool:
    return any(word in accelerator.node_shape.lower() for word in ("workstation", "laptop", "desktop"))


def _is_recent(accelerator: Accelerator) -> bool:
    generation = accelerator.pcie_generation
    return generation is not None and generation.value >= _PCIE_OF_DDR5


def _stated(name: str, figure: Figure) -> Host:
    if not _LEAST <= figure.value <= _MOST:
        raise InputError(
            f"`host` {shorten(name)}: {figure.value / 1e9:g} GB/s is no memory of a host; give 1 to 20000 GB/s"
        )
    return Host(name=name, bytes_per_s=figure, interval=_point(figure.value))


def _figure(row: Mapping[str, Any]) -> Figure:
    if "bytes_per_s" in row:
        return Figure(value=float(row["bytes_per_s"]), source=row["source"], as_of=str(_facts()["as_of"]))
    return _of_modules(row["memory"].lower(), source=row["source"])


def _of_modules(word: str, *, source: str = "") -> Figure:
    """``channels · bytes of a channel · transfers a second``."""
    match = _MODULES.fullmatch(word)
    if match is None:
        raise InputError(f"{shorten(word)!r} is no memory such as DDR5-5600x2")
    channel = _facts()["channel"]
    value = float(channel["bytes"]) * int(match.group(2)) * 1e6 * int(match.group(3))
    return Figure(value=value, source=source or channel["source"], as_of=str(_facts()["as_of"]))


def _point(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


@cache
def _facts() -> dict[str, Any]:
    from trilemma.hardware.reader import parse_toml, read_text

    return parse_toml(read_text(_FILE), where=_FILE.name)
