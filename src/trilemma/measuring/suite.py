"""The whole measurement of one device: every bench in turn, within the time that was allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trilemma.errors import InputError
from trilemma.machine import nvml
from trilemma.measuring.clock import FULL, QUICK, Patience
from trilemma.measuring.collectives import collective_figures, world
from trilemma.measuring.device import FORMATS, Device
from trilemma.measuring.disk import FULL_BYTES, QUICK_BYTES, load_rate
from trilemma.measuring.kernels import Bench, BenchFigure, benches
from trilemma.measuring.layers import layer_figures
from trilemma.measuring.steps import step_benches

#: Told (done, of all, what comes next).
Progress = Callable[[int, int, str], None]
#: A bench takes this many times its own tensors at most (a copy of what is cast from FP32).
_ROOM = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What was measured on one device, and what was left out and why. ``cards`` are NVIDIA's cards of the machine, as they were
    right after the benches: what held their clocks down held these figures down."""

    device: Device
    figures: tuple[BenchFigure, ...]
    left_out: tuple[str, ...]
    full: bool
    cards: tuple[nvml.CardState, ...] = ()

    def best(self, figure: str) -> BenchFigure | None:
        """The best of the shapes of a figure: the largest rate, the fewest seconds."""
        found = [one for one in self.figures if one.figure == figure]
        seconds = figure.endswith("_s") and not figure.endswith("_per_s")
        return (min if seconds else max)(found, key=lambda one: one.value) if found else None

    def names(self) -> Sequence[str]:
        return list(dict.fromkeys(one.figure for one in self.figures))


def measure_device(
    device: Device, *, full: bool = False, load_from: Path | None = None, progress: Progress | None = None,
    patience: Patience | None = None,
) -> Measurement:  # fmt: skip
    """Run every bench. Under torchrun the collectives run on all ranks and the rest on the first.

    A bench that the device cannot run (no memory, no such kernel) is left out with the reason.
    """
    patience = patience or (FULL if full else QUICK)
    rank, ranks = world()
    figures: list[BenchFigure] = list(collective_figures(device)) if ranks > 1 else []
    if rank > 0:
        return Measurement(device=device, figures=tuple(figures), left_out=(), full=full)
    left_out: list[str] = []
    formats = [fmt for fmt in FORMATS if fmt != "fp16"]
    planned = [*benches(device, full=full), *(one for fmt in formats for one in step_benches(device, fmt))]
    total = len(planned) + 2
    for at, bench in enumerate(planned):
        if progress is not None:
            progress(at, total, f"{bench.figure}: {bench.shape}")
        found = _tried(bench, device, patience, left_out)
        figures += [found] if found is not None else []
    cards = nvml.Library().states() if device.kind == "cuda" and nvml.present() else ()
    if progress is not None:
        progress(len(planned), total, "layers of Transformers")
    rates = {one.figure: one.value for one in figures}
    for fmt in formats:
        figures += layer_figures(device, fmt, patience, rates)
    if progress is not None:
        progress(len(planned) + 1, total, "loading from a file")
    try:
        folder, size = load_from or Path.cwd(), FULL_BYTES if full else QUICK_BYTES
        figures.append(load_rate(device, folder, n_bytes=size))
    except InputError as error:
        if load_from is not None:
            raise
        left_out.append(f"load_bytes_per_s: {error}")
    if progress is not None:
        progress(total, total, "")
    return Measurement(device=device, figures=tuple(figures), left_out=tuple(left_out), full=full, cards=cards)


def _tried(bench: Bench, device: Device, patience: Patience, left_out: list[str]) -> BenchFigure | None:
    if bench.needs_bytes * _ROOM > device.free_bytes():
        left_out.append(f"{bench.figure} {bench.shape}: not enough free memory")
        return None
    try:
        return bench.run(device, patience)
    except (RuntimeError, NotImplementedError, TypeError) as error:  # a kernel that this device or release lacks
        left_out.append(f"{bench.figure} {bench.shape}: {str(error).splitlines()[0][:120]}")
        return None
