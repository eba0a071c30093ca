"""Running the planners that are compared: ours as a user runs it, the others in the environments where they are installed."""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ESTIMATES = Path(__file__).with_name("aiconfigurator_estimates.py")
#: Their names of engines → ours.
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
_LONGEST_S = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command said, in milliseconds and tokens per second; ``error`` in its own words where it did not answer.

    ``seconds`` are of the clock, ``cpu_seconds`` of all its processes: what the command takes on a machine that is busy.
    """

    seconds: float
    cpu_seconds: float
    document: Mapping[str, Any]
    error: str = ""
    exit_code: int = 0


def ours(*arguments: str) -> Answer:
    """``trilemma`` with ``--json``, as a process of its own. Ends the study where it has no answer."""
    done, taken = _timed([sys.executable, "-m", "trilemma", *arguments, "--json"])
    if done.returncode > 1:
        raise SystemExit(f"trilemma {' '.join(arguments)}: {done.stderr.strip()}")
    return Answer(**taken, document=json.loads(done.stdout), exit_code=done.returncode)


def _timed(command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], dict[str, float]]:
    before, start = _children_s(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    return done, {"seconds": time.perf_counter() - start, "cpu_seconds": _children_s() - before}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, kw_only=True, slots=True)
class Aiconfigurator:
    """aiconfigurator in an environment of its own, or its successor, which answers the same calls; ``python`` is that
    environment's, ``module`` where its single-point estimate lies."""

    python: str
    name: str = "aiconfigurator"
    module: str = "aiconfigurator.cli.api"

    def version(self) -> str:
        program = f"import importlib.metadata as m; print(m.version('{self.name}'))"
        return subprocess.run(
            [self.python, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()  # fmt: skip

    def _run(self, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, float]]:
        return _timed([self.python, "-W", "ignore", "-m", "aiconfigurator.main", "cli", *arguments, "--no-color"])

    def estimate(self, *, model: str, system: str, engine: str, **options: object) -> Answer:
        """Its single-point command: TTFT, TPOT and tokens per second and GPU as printed."""
        done, taken = self._run("estimate", *_flags(model_path=model, system=system, backend=engine, **options))
        if done.returncode:
            return Answer(**taken, document={}, error=_last_words(done), exit_code=done.returncode)
        names = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "tokens/s/gpu": "per_gpu"}
        found = {}
        for line in done.stdout.splitlines():
            name, _, value = line.strip().partition(":")
            if name in names:
                found[names[name]] = float(value.split()[0].replace(",", ""))
        return Answer(**taken, document=found)

    def search(self, *, model: str, system: str, engine: str, **options: object) -> Answer:
        """Its search for aggregated plans: the rows of its table of best plans under ``plans``."""
        with tempfile.TemporaryDirectory() as folder:
            flags = _flags(model_path=model, system=system, backend=engine, save_dir=folder, **options)
            done, taken = self._run("default", "--serving-mode", "agg", *flags)
            tables = sorted(Path(folder).rglob("best_config_topn.csv"))
            plans = list(csv.DictReader(tables[0].open(encoding="utf-8"))) if tables else []
        error = "" if plans else _last_words(done)
        return Answer(**taken, document={"plans": plans}, error=error, exit_code=done.returncode)

    def estimates(self, jobs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Many estimates in one process (see `aiconfigurator_estimates`), in the order of ``jobs``."""
        done = subprocess.run(
            [self.python, "-W", "ignore", str(ESTIMATES), self.module],
            input=json.dumps(list(jobs)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
        return [json.loads(line) for line in done.stdout.splitlines()]


def _flags(**options: object) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The line that says why: an error line of its own, else the last one."""
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("Error:", "RuntimeError:")) or "Error: " in line[:60]]
    return (told or lines or ["no words"])[-1]
