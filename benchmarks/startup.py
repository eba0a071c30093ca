"""How long a person waits before the first character: ``trilemma --help`` and ``trilemma fit`` beside bare Python.

A machine under load makes everything slower alike, so the figures stand beside ``python -c pass`` and ``import numpy``,
measured in turns with them, and are printed as ratios too. Byte code is cached, as an installation does it, even where the
environment forbids that (``PYTHONDONTWRITEBYTECODE``). Bars: ``--help`` 0.3 s, ``fit`` 0.5 s.

    python benchmarks/startup.py [--runs 15] [--check]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

#: name → (what is run, the bar in seconds).
COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": (["-c", "pass"], None),
    "python -c 'import numpy'": (["-c", "import numpy"], None),
    "trilemma --help": (["-m", "trilemma", "--help"], 0.3),
    "trilemma fit llama-3.1-70b --gpu h100-sxm:4": (
        ["-m", "trilemma", "fit", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "h100-sxm:4"],
        0.5,
    ),
}


def environment(byte_code: str) -> dict[str, str]:
    """This environment with byte code cached in the folder ``byte_code``."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": byte_code}


def seconds_of(command: list[str], variables: Mapping[str, str]) -> float:
    """Wall-clock seconds of one run; ends the benchmark when a command fails for another reason than "does not fit"."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=variables)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} exits with {done.returncode}: {done.stderr.strip()[:300]}")
    return seconds


def measure(runs: int) -> dict[str, float]:
    """Median seconds of every command; the commands take turns so that a busy minute touches all of them."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as byte_code:
        variables = environment(byte_code)
        for command, _ in COMMANDS.values():
            seconds_of(command, variables)  # the first run compiles
        for _ in range(runs):
            for name, (command, _) in COMMANDS.items():
                taken[name].append(seconds_of(command, variables))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Median start-up seconds of trilemma beside bare Python.")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    arguments = parser.parse_args()
    medians = measure(max(1, arguments.runs))
    bare, numpy = (medians[name] for name in list(COMMANDS)[:2])
    missed = False
    print(f"{'command':<46} {'median s':>9} {'x pass':>7} {'x numpy':>8} {'bar s':>6}")
    for name, seconds in medians.items():
        bar = COMMANDS[name][1]
        over = bar is not None and seconds > bar
        missed |= over
        shown = "" if bar is None else f"{bar:g}{' !' if over else ''}"
        print(f"{name:<46} {seconds:9.3f} {seconds / bare:7.1f} {seconds / numpy:8.1f} {shown:>6}")
    return int(missed and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
