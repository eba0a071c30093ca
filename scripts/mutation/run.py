"""Do the tests notice small slips? A seeded choice of mutants of the physics, the engines and the reports, each run for itself.

    scripts/mutation/run.py record [TESTS...]      which test runs which line (pytest-cov), and how long it takes; may be repeated
    scripts/mutation/run.py run --count 300        mutants, each against the tests that run its line; goes on where it was stopped
    scripts/mutation/run.py run tests/report --rooms report,cli/fit.py    of some rooms, against some tests
    scripts/mutation/run.py show                   killed and survived by room, and the survivors

Everything lies in a folder (``--folder``, else ``.mutation``). A mutant is a fork of a pytest session that has collected every
test, in which one function has the slip (`warm`); where it is importing or collecting that runs the line, a fork whose import of
the module is answered with the slip in it. Its tests run until one fails, those of its own room first, then the pinned answers,
then the others, each shortest first, or until their time is used up. ``equivalent.txt`` beside this file lists mutants that
change nothing, with the reason; they count neither way.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import os
import random
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from mutants import Mutant, module_of, mutants, mutated
from warm import Warm, swaps

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
ROOMS = ("memory", "timing", "engines", "report")  # packages, or modules such as cli/fit.py
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
#: Tests of one mutant at most, and where they have to be collected anew: node ids beyond it slow that down more than they find.
_MOST_TESTS, _MOST_COLLECTED = 2000, 400
_LEAST_TESTS = 3
#: A line that fewer tests run is tried with others that run its file.
_FEW = 10
#: Folders of tests that need minutes or PyTorch and run none of the rooms.
_LEFT_OUT = ("--ignore=tests/precision/lab", "--ignore=tests/precision/watch")
#: Room → folders of its tests, where they are several.
_NEAR = {"engines": ("tests/engines/", "tests/deployment/")}


def record(folder: Path, tests: Sequence[str], jobs: str) -> int:
    """Runs tests under coverage with their names as contexts, beside what earlier runs found."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("times-*.xml")))
    words = [
        sys.executable, "-m", "pytest", "-q", "-n", jobs, "--cov=trilemma", "--cov-branch", "--cov-context=test",
        "--cov-report=", "--cov-append", f"--junitxml={folder / f'times-{number}.xml'}", *tests,
    ]  # fmt: skip
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "coverage"), "PYTHONPATH": str(SOURCE)}
    return subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode


class Tests:
    """Which tests run which line: (file, line) → node ids."""

    def __init__(self, folder: Path) -> None:
        from coverage import CoverageData

        self._data = CoverageData(basename=str(folder / "coverage"))
        self._data.read()
        self._files: dict[str, list[str]] = defaultdict(list)  # several where folders were recorded in turn
        for one in self._data.measured_files():
            self._files[one.rpartition("src/trilemma/")[2]].append(one)
        self._seconds = self._passed(folder)
        self._cached: dict[str, dict[int, set[str]]] = {}

    @staticmethod
    def _passed(folder: Path) -> dict[tuple[str, str], float]:
        found = {}
        for path in sorted(folder.glob("times-*.xml")):
            for case in ET.parse(path).iter("testcase"):
                if not len(case) or all(child.tag in ("properties", "system-out") for child in case):
                    found[case.get("classname", ""), case.get("name", "")] = float(case.get("time", 0))
        return found

    def _time(self, test: str) -> float | None:
        path, _, name = test.partition("::")
        return self._seconds.get((path.removesuffix(".py").replace("/", "."), name))

    def _lines(self, path: str) -> dict[int, set[str]]:
        if path not in self._cached:
            found: dict[int, set[str]] = defaultdict(set)
            for measured in self._files.get(path.removeprefix("src/trilemma/"), ()):
                for line, contexts in self._data.contexts_by_lineno(measured).items():
                    found[line] |= {one.rpartition("|")[0] for one in contexts}
            self._cached[path] = found
        return self._cached[path]

    def of(self, mutant: Mutant) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        """(seconds, node id) of the tests that run the line, and of others that run the file.

        A line run at import is run by all of these. What a cache keeps is recorded for the test alone that asked first.
        """
        lines = self._lines(mutant.path)
        found = lines.get(mutant.line) or lines.get(mutant.first_line) or set()
        every = set().union(*lines.values()) if lines else set()
        if _at_import(mutant):
            found = every
        return self._timed(found), self._timed(every - found)

    def _timed(self, tests: set[str]) -> list[tuple[float, str]]:
        return sorted((seconds, one) for one in tests if one and (seconds := self._time(one)) is not None)

    def at_import(self, mutant: Mutant) -> bool:
        """Whether importing or collecting runs the line, so that only another import shows what the slip does there."""
        lines = self._lines(mutant.path)
        return "" in (lines.get(mutant.line) or lines.get(mutant.first_line) or ())


def _at_import(mutant: Mutant) -> bool:
    text = (ROOT / mutant.path).read_text(encoding="utf-8").splitlines()[mutant.first_line - 1]
    return bool(text) and not text[0].isspace() and not text.startswith(("def ", "async ", "class "))


def chosen(tests: list[tuple[float, str]], budget_s: float, path: str) -> list[str]:
    """As many tests as the time allows, nearest first: of its own room, pinned answers, others; short ones before."""
    room = path.split("/")[2]

    def distance(test: str) -> int:
        near = _NEAR.get(room, (f"tests/{room}/",))
        return 0 if test.startswith(near) else 1 if test.startswith("tests/answers/") else 2

    picked, used = [], 0.0
    for seconds, one in sorted(tests, key=lambda test: (distance(test[1]), *test)):
        # A room's own quick tests leave time for what is farther; the nearest few run whatever they take.
        fits = used + seconds <= (budget_s if distance(one) else budget_s / 3) and len(picked) < _MOST_TESTS
        if fits or len(picked) < _LEAST_TESTS:
            picked.append(one)
            used += seconds + 0.005
    return picked


class _Slip(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers the import of one module with its mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._path = ROOT / mutant.path
        self._name = module_of(mutant.path)
        self._code = compile(mutated(self._path.read_text(encoding="utf-8"), mutant), str(self._path), "exec")

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self._path))
        spec.has_location = True
        if self._path.name == "__init__.py":
            spec.submodule_search_locations = [str(self._path.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def outcome(mutant: Mutant | None, tests: list[str], limit_s: float) -> str:
    """``killed``, ``survived``, ``timeout`` or ``unclear``; no mutant: the tests as they are."""
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        try:
            if mutant is not None:
                sys.meta_path.insert(0, _Slip(mutant))
            import pytest

            words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", "--no-header", "--tb=no"]
            words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis is imported before the fork
            code = int(pytest.main([*words, *tests]))
        except BaseException:
            code = 9
        os._exit(code)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", 1: "killed", 2: "killed"}.get(code, "unclear" if code > 0 else "killed")
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def run(
    folder: Path, tests: Sequence[str], *, rooms: Sequence[str], count: int, seed: int, budget_s: float, again: bool
) -> None:
    """The first ``count`` of a seeded order of all mutants of ``rooms``, those with a result left out, against ``tests`` (all
    where none are named); ``again``: survivors once more."""
    sys.path.insert(0, str(SOURCE))
    os.environ["PYTHONPATH"] = str(SOURCE)
    os.chdir(ROOT)
    results = folder / "results.jsonl"
    known = {one["name"]: one for one in read(results)}
    left = []
    for mutant in choice(count, seed, rooms):
        before = known.get(mutant.name)
        if before is not None and not (again and before["outcome"] in ("survived", "unclear", "not run")):
            continue
        left.append(mutant)
    began = _Clock(results)
    by_import: list[tuple[Mutant, list[str], int]] = []

    def in_session(warm: Warm) -> None:
        recorded = Tests(folder)  # here: coverage empties its file where it finds that it was forked
        for mutant in left:
            own, others = recorded.of(mutant)
            picked = chosen(own, budget_s, mutant.path)
            picked += [one for one in chosen(others, budget_s / 4, mutant.path) if len(own) < _FEW]
            path = ROOT / mutant.path
            codes = swaps(path.read_text(encoding="utf-8"), path, mutant)
            found = "not run" if not picked else warm.outcome(codes, picked, 4 * budget_s + 60) if codes else "unclear"
            if picked and (found == "unclear" or (found == "survived" and recorded.at_import(mutant))):
                pending.write(json.dumps({"tests": picked[:_MOST_COLLECTED], "of": len(own), **asdict(mutant)}) + "\n")
                pending.flush()
            else:
                began.write(mutant, found, len(picked), len(own))

    with (folder / "pending.jsonl").open("w", encoding="utf-8") as pending:
        child = os.fork()
        if child == 0:
            _session(in_session, tests, rooms)
        os.waitpid(child, 0)
    for line in (folder / "pending.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        picked, of = row.pop("tests"), row.pop("of")
        by_import.append((Mutant(**row), picked, of))
    for mutant, picked, of in by_import:
        found = outcome(mutant, picked, 4 * budget_s + 60)
        if found == "unclear" and outcome(None, picked, 4 * budget_s + 60) == "survived":
            found = "killed"  # the tests are not even found with it, and pass without
        began.write(mutant, found, len(picked), of)


def _session(work: Callable[[Warm], None], tests: Sequence[str], rooms: Sequence[str]) -> None:
    """pytest with every test collected and none run; does not return."""
    import pytest

    words = ["-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", "--no-header", "--tb=no"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *_LEFT_OUT, *tests]
    os._exit(int(pytest.main(words, plugins=[Warm(work, map(module_of, _modules(rooms)), SOURCE)])))


def _modules(rooms: Sequence[str]) -> Iterator[str]:
    """Every module of the rooms, as its path."""
    for room in rooms:
        place = SOURCE / "trilemma" / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            yield str(path.relative_to(ROOT))


class _Clock:
    """Writes results down, each with the seconds since the last."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, time.monotonic()

    def write(self, mutant: Mutant, found: str, tests: int, of: int) -> None:
        now = time.monotonic()
        row = {"name": mutant.name, "outcome": found, "tests": tests, "of": of, "seconds": round(now - self._last, 1)}
        self._last = now
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({**row, **asdict(mutant)}) + "\n")


def choice(count: int, seed: int, rooms: Sequence[str]) -> list[Mutant]:
    """``count`` of all mutants of ``rooms``; the order depends on the seed and the source alone."""
    every = [mutant for path in _modules(rooms) for mutant in mutants(ROOT / path, ROOT)]
    random.Random(seed).shuffle(every)
    print(f"{len(every):,} mutants, {count} of them by seed {seed}", flush=True)
    return every[:count]


def read(path: Path) -> list[dict[str, Any]]:
    """Results, the latest of each mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return list({row["name"]: row for row in map(json.loads, lines)}.values())


def show(folder: Path) -> None:
    """Killed and survived by room, then every survivor."""
    same = {line.split(" || ")[0].strip() for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()} - {""}
    rows = read(folder / "results.jsonl")
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        equivalent = f"{row['path']}: {row['text']}" in same
        row["outcome"] = "equivalent" if equivalent and row["outcome"] != "killed" else row["outcome"]
        for room in (row["path"].split("/")[2], "all"):
            counted[room][row["outcome"]] += 1
    for room, one in counted.items():
        killed = one["killed"] + one["timeout"]
        total = sum(one.values()) - one["equivalent"]
        print(f"{room:8} {killed:4} of {total:4} killed ({killed / max(total, 1):.0%})  {dict(one)}")
    for row in sorted(rows, key=lambda row: row["name"]):
        if row["outcome"] not in ("killed", "timeout", "equivalent"):
            print(f"{row['outcome']:9} {row['tests']:3}/{row['of']:<5} {row['path']}:{row['line']}: {row['text']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("record", "run", "show"))
    parser.add_argument("tests", nargs="*", help="tests to record, or to run mutants against (default: all)")
    parser.add_argument(
        "--rooms", default=",".join(ROOMS), help="run: packages and modules below src/trilemma, commas between"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutation")
    parser.add_argument("--jobs", default="2", help="record: processes")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=60.0, help="seconds of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="run survivors once more")
    arguments = parser.parse_intermixed_args()
    if arguments.do == "record":
        return record(arguments.folder, arguments.tests, arguments.jobs)
    if arguments.do == "run":
        run(
            arguments.folder,
            arguments.tests,
            rooms=arguments.rooms.split(","),
            count=arguments.count,
            seed=arguments.seed,
            budget_s=arguments.budget_s,
            again=arguments.again,
        )
    show(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
