"""Sixteen writers to one ledger, one of them killed (-9) each second: does anything that was acknowledged get lost?

    python scripts/ledger_under_kills.py [--ledger FILE | postgresql://…] [--runs 10000] [--writers 16]

A writer notes a run once the ledger has acknowledged it, in a file of its own. At the end every noted run must be there as it
was written, and the database must pass its own check. Exit 1 where anything is lost or corrupt.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from trilemma.errors import InputError
from trilemma.runs.databases import is_postgres
from trilemma.runs.run import LedgerRun
from trilemma.runs.store import RunLedger

_LONGEST_S = 900.0


def _run(writer: int, at: int) -> LedgerRun:
    return LedgerRun(
        name=f"w{writer}-{at}", started_s=1.7e9 + at, ended_s=1.7e9 + at + 1 / 3, figures={"step_s": writer + at / 1e6},
        config={"writer": writer, "at": at},
    )  # fmt: skip


def write(ledger: str, writer: int, noted: Path) -> None:
    """Write until killed or told to end; a line of ``noted`` is a run that was acknowledged."""
    with noted.open("a", buffering=1) as out:
        at = sum(1 for _ in noted.open())  # a writer that was killed goes on where it was
        while True:
            with contextlib.suppress(InputError), RunLedger(ledger) as kept:
                while True:
                    found = kept.add(_run(writer, at))
                    out.write(f"{found} {at}\n")
                    at += 1


def acknowledged(folder: Path) -> int:
    return sum(one.read_bytes().count(b"\n") for one in folder.glob("said*"))


def under_kills(ledger: str, *, runs: int, writers: int, folder: Path) -> tuple[int, int]:
    """(runs acknowledged, kills)."""
    context = multiprocessing.get_context("spawn")

    def begun(at: int) -> multiprocessing.context.SpawnProcess:
        one = context.Process(target=write, args=(ledger, at, folder / f"said{at}"), daemon=True)
        one.start()
        return one

    living, kills, ends = {at: begun(at) for at in range(writers)}, 0, time.monotonic() + _LONGEST_S
    while acknowledged(folder) < runs and time.monotonic() < ends:
        time.sleep(1.0)
        at = random.choice(list(living))
        os.kill(living[at].pid or 0, signal.SIGKILL)
        living[at].join()
        kills += 1
        living[at] = begun(at)
        print(f"\r{acknowledged(folder):,} runs acknowledged, {kills} kills", end="", file=sys.stderr)
    for one in living.values():
        os.kill(one.pid or 0, signal.SIGKILL)
        one.join()
    print(file=sys.stderr)
    return acknowledged(folder), kills + writers


def lost(ledger: str, folder: Path) -> list[str]:
    """What was acknowledged and is not there as it was written."""
    with RunLedger(ledger, must_exist=True) as kept:
        there = {run.id: run for run in kept.runs(most=10**9)}
    wrong = []
    for one in folder.glob("said*"):
        writer = int(one.name.removeprefix("said"))
        for line in one.read_text().splitlines():
            found, at = map(int, line.split())
            run = there.get(found)
            expected = _run(writer, at)
            if run is None or (run.name, run.figures, run.config) != (expected.name, expected.figures, expected.config):
                wrong.append(f"run {found} of writer {writer}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ledger", help="default: a file of its own")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--writers", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = arguments.ledger or str(folder / "runs.db")
        started = time.monotonic()
        told, kills = under_kills(ledger, runs=arguments.runs, writers=arguments.writers, folder=folder)
        wrong = lost(ledger, folder)
        whole = "ok" if is_postgres(ledger) else sqlite3.connect(ledger).execute("PRAGMA integrity_check").fetchone()[0]
        print(
            f"{told:,} runs acknowledged by {arguments.writers} writers in {time.monotonic() - started:.0f} s, {kills} kills:"
            f" {len(wrong)} lost; check of the database: {whole}"
        )
        for one in wrong[:10]:
            print(f"lost: {one}")
    return 0 if not wrong and whole == "ok" and told >= arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
