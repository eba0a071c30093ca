"""The device that is measured, through PyTorch: a card of NVIDIA or AMD, or the processor."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trilemma.errors import InputError, shorten
from trilemma.measuring.clock import Stopwatch

Kind = Literal["cuda", "rocm", "cpu"]
#: Formats of products by the name of their PyTorch type, the widest first.
FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device and how to wait for it. ``torch`` is the module, ``place`` where tensors go ("cuda:0", "cpu").

    ``memory_bytes`` is what the runtime reports in all, ``threads`` how many of a processor's cores compute.
    """

    torch: Any = field(repr=False)
    kind: Kind
    place: str
    name: str
    memory_bytes: float
    compute_capability: float | None
    architecture: str
    threads: int

    @property
    def on_card(self) -> bool:
        return self.kind != "cpu"

    @property
    def watch(self) -> Stopwatch:
        """Seconds of the wall; of a processor on one thread those that it computed for this process."""
        if self.on_card:
            torch, place = self.torch, self.place
            return Stopwatch(wait=lambda: torch.cuda.synchronize(place))
        return Stopwatch(wait=_nothing, now=time.process_time if self.threads == 1 else time.perf_counter)

    def random(self, *shape: int, fmt: str = "fp32") -> Any:
        """A tensor of random numbers: zeros draw less power than real products do."""
        kind = getattr(self.torch, FORMATS[fmt])
        return self.torch.randn(*shape, device=self.place, dtype=self.torch.float32).to(kind)

    def free_bytes(self) -> float:
        """What may be taken now."""
        if self.on_card:
            return float(self.torch.cuda.mem_get_info(self.place)[0])
        return _host_free_bytes()


def find_device(wanted: str = "", *, threads: int | None = None) -> Device:
    """The first card, else the processor; or ``wanted``: "cpu", "cuda", "cuda:1". ``threads`` of a processor compute.

    Raises `InputError` without PyTorch, or for a device that is not there. AMD's cards answer to "cuda" too (ROCm's PyTorch).
    """
    try:
        import torch
    except ImportError:
        raise InputError("measuring needs PyTorch; install trilemma[torch]") from None
    if threads is not None:
        torch.set_num_threads(threads)
    there = torch.cuda.is_available()
    place = wanted or ("cuda" if there else "cpu")
    if place == "cpu":
        return _processor(torch)
    head, _, number = place.partition(":")
    if head != "cuda" or not (number or "0").isdecimal():
        raise InputError(f"--device {shorten(wanted)} is no device; give cpu, cuda or cuda:1")
    count = torch.cuda.device_count() if there else 0
    if int(number or 0) >= count:
        raise InputError(f"--device {shorten(wanted)}: PyTorch sees {count} cards; give cpu, or a card that is there")
    return _card(torch, int(number or 0))


def _card(torch: Any, number: int) -> Device:
    told = torch.cuda.get_device_properties(number)
    rocm = bool(torch.version.hip)
    torch.cuda.set_device(number)
    capability = None if rocm else float(f"{told.major}.{told.minor}")
    return Device(
        torch=torch, kind="rocm" if rocm else "cuda", place=f"cuda:{number}", name=str(told.name),
        memory_bytes=float(torch.cuda.mem_get_info(number)[1]), compute_capability=capability,
        architecture=str(getattr(told, "gcnArchName", "")) if rocm else f"sm_{told.major}{told.minor}",
        threads=torch.get_num_threads(),
    )  # fmt: skip


def _processor(torch: Any) -> Device:
    return Device(
        torch=torch, kind="cpu", place="cpu", name=_processor_name(), memory_bytes=_host_bytes(), compute_capability=None,
        architecture=platform.machine() or "processor", threads=torch.get_num_threads(),
    )  # fmt: skip


def _nothing() -> None:
    """A processor has done what was asked of it when the call returns."""


def _processor_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            told = next((line for line in file if line.startswith("model name")), "")
    except OSError:
        told = ""
    return told.partition(":")[2].strip()[:100] or platform.processor() or "processor"


def _host_bytes() -> float:
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _host_free_bytes() -> float:
    try:
        with Path("/proc/meminfo").open(encoding="utf-8") as file:
            told = next((line for line in file if line.startswith("MemAvailable")), "")
        return float(told.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return _host_bytes() / 2
