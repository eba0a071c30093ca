"""A run recorded while it goes: ``with trilemma.record("name", …) as run: run.log(step_s=0.31)``."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Any

from trilemma.errors import shorten
from trilemma.measuring.energy.sampler import PowerSampler, power_source
from trilemma.measuring.energy.window import EnergyWindow
from trilemma.runs.run import LedgerRun, RunEvent, checked_figure
from trilemma.runs.store import RunLedger, ledger_path

#: Points are written so often: an ``fsync`` is far longer than a step may wait for.
_EVERY_S, _EVERY_POINTS = 10.0, 5000


class Recorder:
    """Keeps a run in the ledger from its start on.

    The figures of a run are the medians of what it logged (the last of names that end in ``_last`` or ``loss``, the largest of
    ``peak_…``), or those that `figure` states. A run that leaves with an exception is "crashed", one whose process dies stays
    "running".
    """

    def __init__(
        self,
        name: str,
        *,
        ledger: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        model: str = "",
        gpu: str = "",
        gpus: int | None = None,
        tags: tuple[str, ...] = (),
        estimate: Any = None,
        energy: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._ledger = RunLedger(ledger_path(None if ledger is None else str(ledger)))
        document = estimate.to_dict() if hasattr(estimate, "to_dict") else dict(estimate or {})
        run = LedgerRun(
            name=name, started_s=clock(), status="running", model=model, gpu=gpu, gpus=gpus, tags=tuple(tags), git=git_state(),
            config=dict(config or {}), machine=machine_state(), estimate=document,
        )  # fmt: skip
        self.run = replace(run, id=self._ledger.add(run))
        self._points: list[tuple[str, float, float]] = []
        self._kept: dict[str, list[float]] = {}
        self._figures: dict[str, float] = {}
        self._written = time.monotonic()
        self._power = PowerSampler(power_source()) if energy else None
        if self._power is not None:
            self._power.start()

    def log(self, **figures: float) -> None:
        """Figures of this moment, units in their names: ``step_s=0.31, tokens_per_s_per_gpu=4100``."""
        now = self._clock()
        for name, value in figures.items():
            number = checked_figure(name, value)
            self._points.append((name, now, number))
            self._kept.setdefault(name, []).append(number)
        if len(self._points) >= _EVERY_POINTS or time.monotonic() - self._written > _EVERY_S:
            self.flush()

    def event(self, what: str) -> None:
        """Something that happened now: a checkpoint, a restart."""
        self._ledger.add_event(self.run.id, RunEvent(at_s=self._clock(), what=what))

    def figure(self, **figures: float) -> None:
        """Results of the whole run, as they are to stand in the ledger."""
        self._figures |= {name: checked_figure(name, value) for name, value in figures.items()}

    def watch(self, optimizer: Any) -> Recorder:
        """Log ``step_s`` from one step of a PyTorch optimizer to the next; the seconds between are the whole loop's."""
        last: list[float] = []

        def stepped(*_: Any) -> None:
            now = time.perf_counter()
            if last:
                self.log(step_s=now - last[0])
            last[:] = [now]

        optimizer.register_step_post_hook(stepped)
        return self

    def flush(self) -> None:
        """Write what was logged."""
        points, self._points = self._points, []
        self._written = time.monotonic()
        if points:
            self._ledger.add_points(self.run.id, points)

    def end(self, why: str = "") -> LedgerRun:
        """Close the run: done, or crashed for ``why``."""
        if self._power is not None:
            self._power.stop()
            self._drawn(self._power.window())
        self.flush()
        figures = {name: _summary(name, values) for name, values in self._kept.items()} | self._figures
        status: Any = "crashed" if why else "done"
        self.run = replace(self.run, ended_s=self._clock(), status=status, why=shorten(why, most=300), figures=figures)
        self._ledger.change(self.run)
        self._ledger.close()
        return self.run

    def _drawn(self, drawn: EnergyWindow) -> None:
        """Joules and watts of the whole run, or why there are none."""
        if drawn.joules is None:
            self.event(f"no energy: {drawn.fault}, {drawn.detail}"[:200])
        else:
            self._figures |= {"energy_j": drawn.joules, "mean_w": drawn.joules / drawn.seconds}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end("" if kind is None else f"{kind.__name__}: {error}")


def record(name: str, **options: Any) -> Recorder:
    """A run of ``name`` in the ledger, as a context: ``with record("8b-fp8", config={…}) as run: run.log(step_s=0.31)``.

    ``ledger`` names the file, ``config`` the settings, ``model``, ``gpu`` and ``gpus`` what ran where, ``tags`` words to find it
    by, ``estimate`` the answer (or its document) that it was planned with. With ``energy`` what the cards draw is sampled
    (extra ``nvml``; else the processor's counters) and kept as ``energy_j`` and ``mean_w``, or as an event that says why not.
    """
    return Recorder(name, **options)


def _summary(name: str, values: list[float]) -> float:
    if name.startswith("peak_") or "_peak" in name:
        return max(values)
    if name.endswith(("loss", "_last")):
        return fmean(values[-max(1, len(values) // 100) :])
    return median(values)


def git_state(folder: Path | None = None) -> str:
    """``<commit>`` of the working tree, ``+`` behind it where files are changed; empty where there is none."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"], cwd=folder, capture_output=True,
            text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()[:200] if told.returncode == 0 else ""


def machine_state() -> dict[str, Any]:
    """What this machine is: host, system, processors, Python; GPUs, driver and power caps where a tool tells."""
    import os
    import platform

    told: dict[str, Any] = {
        "host": platform.node()[:100], "system": platform.platform()[:100], "python": platform.python_version(),
        "processors": os.cpu_count(),
    }  # fmt: skip
    fields = "name,driver_version,power.limit,pcie.link.gen.current,pcie.link.width.current"
    words = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return told
    rows = [[cell.strip() for cell in row.split(",")] for row in found.stdout.splitlines()[:64] if row.count(",") == 4]
    if found.returncode == 0 and rows:
        told["gpus"] = [dict(zip(fields.split(","), row, strict=True)) for row in rows]
    return told
