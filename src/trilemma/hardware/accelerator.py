"""Where it runs: one accelerator, every constant with its source. Hardware knows no model and no plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trilemma.intervals import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A constant of the world: the value, who says so, when, what else is claimed and why this one was chosen.

    ``recalled`` marks a figure from memory of a datasheet that nobody looked up again.
    """

    value: float
    source: str
    as_of: str = ""
    recalled: bool = False
    why: str = ""
    alternatives: tuple[Figure, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The fast link between accelerators of one domain; ``bytes_per_s`` is one direction, all links of one accelerator."""

    name: str
    bytes_per_s: Figure
    domain: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One accelerator. Peaks are dense, FP32-accumulating, in FLOP/s, keyed by format name (bf16, fp8, nvfp4, int8, …).

    ``nvml_total_bytes`` is what nvidia-smi or rocm-smi shows; ``runtime_total_bytes`` what cudaMemGetInfo or hipMemGetInfo
    reports to an engine, which is what engines multiply. ``hardware_formats`` are formats with matrix units of their own;
    ``fp8_flavour`` is "ocp", "fnuz" or None. ``link`` is None for cards joined by PCIe only.
    """

    id: str
    name: str
    vendor: str
    architecture: str
    compute_capability: float | None
    label_gb: float
    nvml_total_bytes: Figure | None
    runtime_total_bytes: Figure | None
    bandwidth_bytes_per_s: Figure
    peak_flops: Mapping[str, Figure]
    hardware_formats: tuple[str, ...]
    fp8_flavour: str | None = None
    link: Link | None = None
    pcie_bytes_per_s: Figure | None = None
    gpus_per_node: int = 8
    tdp_w: Figure | None = None
    usd_per_hour: Interval | None = None
    price_source: str = ""
    price_as_of: str = ""
    unified_memory: bool = False
    aliases: tuple[str, ...] = ()
    facts: Mapping[str, Figure] = field(default_factory=dict)
    source: str = ""
