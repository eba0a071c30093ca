"""The board: measured figures beside their predictions, what each stands on, and whether its engine moved on since."""

from __future__ import annotations

import csv
import datetime
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from trilemma.errors import InputError, shorten
from trilemma.measured.dating import parse_date
from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.metrics import Errors, errors
from trilemma.measured.validation import Validation
from trilemma.outside_files import read_text

#: What a figure stands on, the weakest first: somebody wrote it down; a file that is cited at a revision holds it; what the
#: program printed is cited; somebody else asked the same and measured the same.
TYPED, FILED, LOGGED, REPRODUCED = "typed", "in a cited file", "with raw log", "reproduced"
TRUST = (TYPED, FILED, LOGGED, REPRODUCED)
#: Two measurements of one question agree within this share of the smaller.
_AGREES = 0.10
#: ``owner/name@revision:path`` or the address of a file; names that logs and what benchmarks write have.
_FILE = re.compile(r"@[0-9a-f]{6,40}\b|@\S+\.\w{1,5}\b|https?://\S+\.(?:log|txt|csv|jsonl?|gz|md)\b")
_LOG = re.compile(r"\.(?:log|out|err|jsonl?|gz|ipynb)\b|\blogs?/", re.IGNORECASE)
#: Marks in the names of figures that stand for other predictors or for a part of the way.
_BESIDE = ("interpolated", "baseline", "given")
#: Ages in months, by their upper ends.
_AGES = (
    (3, "under 3 months"),
    (6, "3 to 6 months"),
    (12, "6 to 12 months"),
    (24, "1 to 2 years"),
    (math.inf, "over 2 years"),
)
_UNDATED = "not dated"
_MOST_PEER_BYTES = 16 << 20
_DAYS_A_MONTH = 30.44


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardFigure:
    """One measured figure. ``moved`` counts the facts of the engine that differ between its version and the newest known; None
    where the row names no version or the engine has no facts by version."""

    table: str
    row_id: str
    comparison: FigureComparison
    config: str
    origin: str
    engine: str
    version: str
    card: str
    taken: datetime.date | None
    trust: str
    moved: int | None
    source: str = ""

    @property
    def error(self) -> float:
        """Signed, as a share of what was measured."""
        one = self.comparison
        return (one.predicted - one.measured) / abs(one.measured if one.scale is None else one.scale)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardLine:
    """Errors of one metric over the figures that share ``value``; ``stale`` of them are of versions whose facts moved on."""

    value: str
    metric: str
    errors: Errors
    stale: int
    dated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerLine:
    """Another tool beside this one, on the figures that it predicted."""

    tool: str
    metric: str
    n: int
    ours: Errors
    theirs: Errors


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """All of it, as of ``on``."""

    on: datetime.date
    tables: Mapping[str, Validation]
    figures: tuple[BoardFigure, ...]
    peers: tuple[PeerLine, ...] = field(default=())

    def of(self, table: str) -> tuple[BoardFigure, ...]:
        return tuple(one for one in self.figures if one.table == table)


def board(tables: Mapping[str, Validation], *, on: datetime.date, peers: str | Path | None = None) -> Board:
    """The figures of all ``tables`` (name → judged). ``peers`` is a CSV of ``tool,id,metric,predicted``."""
    figures = [one for name, validation in tables.items() for one in _figures(name, validation)]
    reproduced = _reproduced(figures)
    figures = [replace(one, trust=REPRODUCED) if at in reproduced else one for at, one in enumerate(figures)]
    beside = () if peers is None else tuple(_beside(figures, _peers(Path(peers))))
    return Board(on=on, tables=tables, figures=tuple(figures), peers=beside)


def _figures(table: str, validation: Validation) -> Iterable[BoardFigure]:
    for judgement in validation.judgements:
        common = _common(judgement)
        for comparison in judgement.comparisons:
            yield BoardFigure(
                table=table, row_id=judgement.row_id, comparison=comparison, config=judgement.config,
                origin=common["origin"] or "not stated", engine=common["engine"] or "not stated", version=common["version"],
                card=common["card"] or "not stated", taken=parse_date(common["taken"]), trust=_trust(common["source"]),
                moved=facts_moved(common["engine"], common["version"]), source=common["source"],
            )  # fmt: skip


def _common(judgement: Judgement) -> dict[str, str]:
    from trilemma.engines import canonical

    cells, classes = judgement.cells, judgement.classes
    source = cells.get("source_ref") or cells.get("source", "")
    return {
        "origin": cells.get("origin", ""),
        "engine": canonical(cells.get("engine", "")) or classes.get("framework") or cells.get("framework", ""),
        "version": cells.get("engine_version") or cells.get("version", ""),
        "card": classes.get("gpu") or cells.get("gpu", ""),
        "taken": " ".join((cells.get("date", ""), cells.get("notes", ""))),
        "source": source,
    }


def _trust(source: str) -> str:
    if not _FILE.search(source):
        return TYPED
    return LOGGED if _LOG.search(source) else FILED


def main_metrics(figures: Iterable[BoardFigure], most: int) -> tuple[str, ...]:
    """The ``most`` metrics of our own predictions that most rows have."""
    counts: dict[str, int] = {}
    for one in figures:
        name = one.comparison.metric
        if not any(mark in name for mark in _BESIDE):
            counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts, key=lambda name: -counts[name])[:most])


def _reproduced(figures: Sequence[BoardFigure]) -> set[int]:
    """Places of the figures that another origin measured too, within `_AGREES`, for the same question."""
    alike: dict[tuple[str, str], list[int]] = {}
    for at, one in enumerate(figures):
        if one.config:
            alike.setdefault((one.config, one.comparison.metric), []).append(at)
    found = set()
    for places in alike.values():
        for first in places:
            for second in places:
                mine, other = figures[first], figures[second]
                a, b = mine.comparison.measured, other.comparison.measured
                if mine.origin != other.origin and abs(a - b) <= _AGREES * min(abs(a), abs(b)):
                    found |= {first, second}
    return found


@cache
def facts_moved(engine: str, version: str) -> int | None:
    """How many facts and coefficients of ``engine`` differ between ``version`` and its newest; None where that is not known."""
    from trilemma.engines import get

    if not engine or not version:
        return None
    try:
        then, now = get(engine).facts(version), get(engine).facts(None)
    except (
        InputError,
        AttributeError,
        ModuleNotFoundError,
    ):  # a trainer, a fork without a number, an engine without versions
        return None
    names = then.keys() | now.keys()
    return sum(repr(then.get(name, (None,))[0]) != repr(now.get(name, (None,))[0]) for name in names)


def age_of(one: BoardFigure, on: datetime.date) -> str:
    """The bin of months since the figure was taken."""
    if one.taken is None:
        return _UNDATED
    months = (on - one.taken).days / _DAYS_A_MONTH
    return next(name for most, name in _AGES if months < most)


def lines(figures: Iterable[BoardFigure], by: Callable[[BoardFigure], str]) -> list[BoardLine]:
    """The errors by ``by`` and metric: values with most figures first, metrics of a value likewise."""
    parts: dict[tuple[str, str], list[BoardFigure]] = {}
    for one in figures:
        parts.setdefault((by(one), one.comparison.metric), []).append(one)
    totals: dict[str, int] = {}
    for (value, _), members in parts.items():
        totals[value] = totals.get(value, 0) + len(members)
    found = []
    for (value, metric), members in parts.items():
        stats = _errors(members)
        if stats is not None:
            dated = [one for one in members if one.moved is not None]
            stale = sum(bool(one.moved) for one in dated)
            found.append(BoardLine(value=value, metric=metric, errors=stats, stale=stale, dated=len(dated)))
    return sorted(found, key=lambda line: (-totals[line.value], line.value, -line.errors.n, line.metric))


def _errors(figures: Sequence[BoardFigure], predicted: Sequence[float] | None = None) -> Errors | None:
    """The statistics of ``figures``; of ``predicted`` in place of ours, which has no intervals."""
    rows = [one.comparison for one in figures]
    return errors(
        [row.predicted for row in rows] if predicted is None else predicted,
        [row.measured for row in rows],
        low=[row.low if predicted is None else None for row in rows],
        high=[row.high if predicted is None else None for row in rows],
        scale=[abs(row.measured) if row.scale is None else row.scale for row in rows],
    )


def _beside(figures: Sequence[BoardFigure], peers: Mapping[str, Mapping[tuple[str, str], float]]) -> Iterable[PeerLine]:
    for tool, predicted in peers.items():
        common = [one for one in figures if (one.row_id, one.comparison.metric) in predicted]
        for metric in dict.fromkeys(one.comparison.metric for one in common):
            members = [one for one in common if one.comparison.metric == metric]
            ours = _errors(members)
            theirs = _errors(members, [predicted[one.row_id, metric] for one in members])
            assert ours is not None
            assert theirs is not None
            yield PeerLine(tool=tool, metric=metric, n=len(members), ours=ours, theirs=theirs)


def _peers(path: Path) -> dict[str, dict[tuple[str, str], float]]:
    """Tool → (row, metric) → what it predicted. Raises `InputError`."""
    text = read_text(path, most_bytes=_MOST_PEER_BYTES, what="--peers", give="give a CSV of tool,id,metric,predicted")
    found: dict[str, dict[tuple[str, str], float]] = {}
    reader = csv.DictReader(io.StringIO(text))
    if not {"tool", "id", "metric", "predicted"} <= set(reader.fieldnames or ()):
        raise InputError(f"--peers {shorten(str(path))} lacks a column; give a CSV of tool,id,metric,predicted")
    for row in reader:
        try:
            value = float(row["predicted"] or "nan")
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"--peers {shorten(str(path))}: line {reader.line_num} predicts no number")
        found.setdefault(shorten(row["tool"] or ""), {})[row["id"] or "", row["metric"] or ""] = value
    return found
