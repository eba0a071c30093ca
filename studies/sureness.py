#!/usr/bin/env python3
"""How sure verdicts are against how often they hold: start-up logs, peaks of training, and whole commands of public reports.

    python studies/sureness.py SERVING_MEMORY.csv TRAINING.csv [--reports tests/data/reported_runs.jsonl]

Every source of a table is left out of the counts that set the doubt of its class (data/doubts.toml) while its rows are judged.
Reports are in no table; each states whether it ran, so a training that failed counts too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from trilemma.cli.main import main as trilemma
from trilemma.estimate import doubt
from trilemma.measured.metrics import reliability
from trilemma.measured.selection import parse_condition, select
from trilemma.measured.tables import read_table

#: Said with so much counts as a miss of its class where it ends otherwise.
_SURE = 0.95
Said = tuple[float, bool]


class Classes:
    """The classes that a row is judged in, as the rule of doubt names them, and what another source told of each."""

    def __init__(self) -> None:
        self.here: str | None = None
        self.less: Mapping[str, tuple[int, int]] = {}
        self.silent = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        own: Callable[..., Any] = doubt._of_class

        def without(rows: int, missed: int, *, logs: str, of: str) -> Any:
            self.here = of
            if self.silent:
                return []
            fewer, missed_fewer = self.less.get(of, (0, 0))
            return own(max(rows - fewer, 0), max(missed - missed_fewer, 0), logs=logs, of=of)

        doubt._of_class = without
        try:
            yield
        finally:
            doubt._of_class = own


def of_table(path: str) -> list[Said]:
    """(probability said, whether it held) of every row, its source left out of its class."""
    table = read_table(path)
    serving = table.kind.name != "training"
    conditions = [] if serving else [parse_condition("measured_metric=peak_memory_gib", table.columns)]
    rows = select(table.rows, conditions)
    judge = import_module(
        "trilemma.measured.serving.memory.judge" if serving else "trilemma.measured.training.judge"
    ).judge
    classes, told = Classes(), {}
    with classes.watched():
        classes.silent = True
        counted: dict[str, dict[str, list[int]]] = {}
        for row in rows:
            verdict, classes.here = _verdict(judge, row), None
            verdict = _verdict(judge, row)
            if verdict is None or classes.here is None:
                continue
            found = counted.setdefault(_source(row), {}).setdefault(classes.here, [0, 0])
            found[0] += 1
            found[1] += verdict[0] >= _SURE and not verdict[1]
        classes.silent = False
        for row in rows:
            classes.less = {name: (n, missed) for name, (n, missed) in counted.get(_source(row), {}).items()}
            told[row.id] = _verdict(judge, row)
    return [one for one in told.values() if one is not None]


def _verdict(judge: Any, row: Any) -> Said | None:
    (judged,), _ = judge([row])
    start = judged.start
    return None if start is None or start.sure is None else (start.sure, start.predicted == start.started)


def _source(row: Any) -> str:
    return row.text("source") or row.text("source_title") or row.id


def of_reports(path: str) -> list[tuple[str, Said]]:
    """(id, (probability said, whether it held)) of each report that is answered."""
    found = []
    for line in Path(path).read_text().splitlines():
        one = json.loads(line)
        answer = _answered(one)
        if answer is None:
            continue
        fits = answer["verdict"]["stage"] == "ok" and not answer.get("refused")
        sure = 1.0 if answer.get("refused") else answer["verdict"]["probability"]
        found.append((one["id"], (sure, fits == one["runs"])))
    return found


def peaks_of_reports(path: str) -> list[tuple[str, float, float, float, float]]:
    """(id, GiB told, least, most, GiB stated) of each training report that states its peak: as PyTorch allocated or reserved it,
    or of the whole card."""
    found = []
    for line in Path(path).read_text().splitlines():
        one = json.loads(line)
        answer = _answered(one) if "peak_gib" in one else None
        if answer is None:
            continue
        memory = answer["memory"]
        beside = {"card": (), "reserved": ("context",), "allocated": ("context", "fragmentation")}[one["peak"]]
        less = sum(item["bytes"] for item in memory["items"] if item["name"] in beside)
        figures = (memory[key] for key in ("total_bytes", "total_low_bytes", "total_high_bytes"))
        value, low, high = ((figure - less) / 2**30 for figure in figures)
        found.append((one["id"], value, low, high, one["peak_gib"]))
    return found


def _answered(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    words = list(report["words"])
    at = words.index("--") if "--" in words else len(words)
    told = io.StringIO()
    before = os.getcwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        for name, text in report.get("files", {}).items():
            Path(folder, name).write_text(text)
        os.chdir(folder)
        try:
            trilemma([*words[:at], "--json", *words[at:]])
        finally:
            os.chdir(before)
    try:
        answer: Mapping[str, Any] = json.loads(told.getvalue())
    except ValueError:
        return None
    return answer if "verdict" in answer else None


def show(title: str, said: Sequence[Said]) -> None:
    print(f"{title}: {len(said)} verdicts")
    for one in reliability([p for p, _ in said], [held for _, held in said]):
        if one.n:
            print(f"  {one.at_least:.0%} and more: {one.n:4d}  said {one.mean:.1%}  held {one.held:.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--reports")
    given = parser.parse_args()
    for path in given.tables:
        said = of_table(path)
        show(Path(path).name, said)
        for least in (0.95, 0.99):
            sure = [held for p, held in said if p >= least]
            print(f"  said with {least:.0%} or more: {len(sure)}, ended otherwise {Counter(sure)[False]}")
    if given.reports:
        reports = of_reports(given.reports)
        show(Path(given.reports).name, [one for _, one in reports])
        for name, (sure, held) in reports:
            if not held:
                print(f"  {name}: said otherwise with {sure:.1%}")
        for name, value, low, high, stated in peaks_of_reports(given.reports):
            where = "" if low <= stated <= high else "  outside"
            print(f"  {name}: {value:.1f} GiB told ({low:.1f} - {high:.1f}), {stated:.1f} stated{where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
