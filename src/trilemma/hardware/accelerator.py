"""Where it runs: one accelerator, every constant with its source. Hardware knows no model and no plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trilemma.formats.computing import units
from trilemma.intervals import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A constant of the world: the value, who says so, when, what else is claimed and why this one was chosen.

    ``recalled`` marks a figure from memory of a datasheet that nobody looked up again. In an alternative ``why`` says what
    that figure is or why it was not taken.
    """

    value: float
    source: str
    as_of: str = ""
    recalled: bool = False
    why: str = ""
    alternatives: tuple[Figure, ...] = ()

    @property
    def claims(self) -> tuple[float, ...]:
        """The value chosen and every other value claimed."""
        return (self.value, *(other.value for other in self.alternatives))


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The fast link between accelerators of one domain; ``bytes_per_s`` is one direction, all links of one accelerator.

    ``domain_in_common_use`` is how many of a domain a job usually gets (64 of the 72 of an NVL72 rack); 0 means all.
    """

    name: str
    bytes_per_s: Figure
    domain: int
    domain_in_common_use: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLink:
    """What joins accelerator and processor of one superchip in place of PCIe; ``bytes_per_s`` is one direction."""

    name: str
    bytes_per_s: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One accelerator. Peaks are dense, FP32-accumulating, in FLOP/s, keyed by format name (bf16, fp8, nvfp4, int8, …).

    ``nvml_total_bytes`` is what nvidia-smi or rocm-smi shows; ``runtime_total_bytes`` what cudaMemGetInfo or hipMemGetInfo
    reports to an engine, which is what engines multiply; `runtime_total` answers where the second is not known.
    ``hardware_formats`` are formats with matrix units of their own; ``fp8_flavour`` is "ocp", "fnuz" or None. ``link`` is
    None for cards joined by PCIe only. ``sparse_peak_flops`` assume 2:4 sparsity and serve no estimate.
    ``host_link`` is a link to the host's processor other than PCIe.
    ``measured`` are rates and seconds of one's own machine (`trilemma measure`); ``measured_as`` names the card of the catalogue
    that it is, whose fitted coefficients then hold.
    ``inline_ecc`` says that error correction takes its bits from the memory itself and ``nvml_total_bytes`` shows the rest.
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
    host_link: HostLink | None = None
    gpus_per_node: int = 8
    tdp_w: Figure | None = None
    usd_per_hour: Interval | None = None
    price_source: str = ""
    price_as_of: str = ""
    unified_memory: bool = False
    aliases: tuple[str, ...] = ()
    facts: Mapping[str, Figure] = field(default_factory=dict)
    measured: Mapping[str, Figure] = field(default_factory=dict)
    measured_as: str = ""
    source: str = ""
    label_options_gb: tuple[float, ...] = ()
    label_figure: Figure | None = None
    memory_type: str = ""
    inline_ecc: bool = False
    sparse_peak_flops: Mapping[str, Figure] = field(default_factory=dict)
    pcie_generation: Figure | None = None
    node_shape: str = ""
    node_bytes_per_s: Figure | None = None
    gpu_cores: int | None = None
    launched: str = ""
    notes: tuple[str, ...] = ()

    def peak(self, fmt: str) -> Figure | None:
        """Dense peak of matrix products in ``fmt``, or None where the hardware has no units for it.

        Block-scaled 8-bit floats run at the FP8 rate and the two 4-bit floats at one another's rate where only one is
        listed; nothing else is inferred, and no format is answered with the rate of a wider one.
        """
        if fmt not in self.hardware_formats:
            return None
        found = units(fmt)
        return self.peak_flops.get(fmt) or (self.peak_flops.get(found.twin) if found is not None else None)

    @property
    def own_rates(self) -> dict[str, float]:
        """What was measured on a card that nothing in the catalogue tells of; empty where fitted coefficients hold."""
        return {} if self.measured_as else {name: figure.value for name, figure in self.measured.items()}

    @property
    def host_bytes_per_s(self) -> Figure | None:
        """Between the host's memory and this accelerator, one way: the superchip's own link, else PCIe."""
        return self.host_link.bytes_per_s if self.host_link is not None else self.pcie_bytes_per_s

    def runtime_total(self) -> Interval:
        """Bytes that cudaMemGetInfo or hipMemGetInfo reports: known, or inferred with its interval."""
        from trilemma.hardware.memory import runtime_total

        return runtime_total(self).interval
