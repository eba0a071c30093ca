"""``--holdout``: the fitted terms of serving memory fitted again on the rows that differ in the columns held out.

Fitted are the overhead coefficients (every row of ``data/coefficients/serving_memory/vllm.toml`` for itself) and the widths of
all intervals; weights, cache laws and version facts are not fitted to tables. Each row is then judged with coefficients that
never saw its group.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from trilemma.engines.coefficients import shipped
from trilemma.errors import InputError
from trilemma.estimate.measured import lines_bytes
from trilemma.measured.serving.memory.classes import resolved_cell
from trilemma.measured.serving.memory.figures import PRINTED_LINES
from trilemma.measured.serving.memory.question import StartQuestion
from trilemma.measured.serving.memory.start import start_of
from trilemma.measured.tables import Row, UnusableRow
from trilemma.quantities import GIB, Array

#: (table, place of the row in it, name of the number)
TermPath: TypeAlias = tuple[str, int, str]
FittedRows: TypeAlias = dict[str, list[dict[str, Any]]]

#: The engine whose coefficients are fitted.
FITTED_FILE = "vllm.toml"
#: Tables of coefficients that are fitted, and the numbers in them that are read off the engine's source instead.
FITTED_TABLES = ("sampler", "forward", "encoder", "non_torch_gib", "graphs")
_READ_OFF = {("graphs", "largest_batch"), ("graphs", "charged_share"), ("encoder", "otherwise"), ("encoder", "bytes")}
_WEIGHTS = "weights_gib_per_gpu"
#: First words of the interval widths that belong to a kind of figure: a printed line, weights by how well they are known.
_WIDTHS = {
    "exact weights": ("exact",),
    "quantised weights": ("quantized", "assumed"),
    "weights with vision": ("vision", "uncounted"),
    "activation_peak_gib": ("activations", "sparse"),
    "non_torch_gib": ("workspace", "communication"),
    "cudagraph_gib": ("graphs",),
}
_STEP, _RIDGE = 0.02, 0.01
#: Errors are taken over the figure plus this much: 0.1 GiB of 0.2 matters no more to a card than 0.1 of 0.5.
_FLOOR_GIB = 0.5
#: Errors well beyond this share pull ever less: a row that no coefficient explains is not to bend all of them.
_CAUCHY = 0.2
_LEAST_CHANGE, _MOST_CHANGE = -0.7, 2.0
#: A term that makes up less than this share of every figure kept is not told by them.
_LEAST_SHARE = 0.05
#: Widths are left alone where fewer figures than this remain to set them.
_FEWEST = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figures:
    """Printed lines of all rows; arrays (figures,). ``slopes`` (figures, terms): change per relative change of a term."""

    row: Any
    line: Any
    kind: Any
    source: Any
    measured: Array
    predicted: Array
    half: Array
    terms: tuple[TermPath, ...]
    slopes: Array


def refit(
    rows: Sequence[Row], questions: Sequence[StartQuestion | str], columns: Sequence[str]
) -> tuple[dict[int, FittedRows], dict[str, Any]]:
    """(coefficients by row index, the ``holdout`` part of the document). Rows of one group share their coefficients."""
    figures = _figures(rows, questions)
    groups = {
        index: tuple(resolved_cell(row, question, column) for column in columns)
        for index, (row, question) in enumerate(zip(rows, questions, strict=True))
        if isinstance(question, StartQuestion)
    }
    of_figure = [groups[index] for index in figures.row]
    fits: dict[tuple[str, ...], FittedRows] = {}
    blind: dict[str, int] = {}
    for group in dict.fromkeys(groups.values()):
        keep = np.array([other != group for other in of_figure], dtype=bool)
        fits[group], uninformed = _fit(figures, keep)
        for path in uninformed:
            blind[_named(path)] = blind.get(_named(path), 0) + 1
    document = {
        "columns": list(columns),
        "groups": len(fits),
        "terms": [_named(path) for path in figures.terms],
        "uninformed": blind,
    }
    return {index: fits[group] for index, group in groups.items()}, document


def _figures(rows: Sequence[Row], questions: Sequence[StartQuestion | str]) -> _Figures:
    own = _own()
    usable = {
        index: question
        for index, question in enumerate(questions)
        if isinstance(question, StartQuestion) and question.engine == "vllm"
    }
    base = _predict(usable, own)
    found = [
        (index, line, rows[index].text("source"), measured, base[index][line])
        for index, question in usable.items()
        if index in base
        for line in PRINTED_LINES
        if (measured := _measured(rows[index], question, line)) is not None
    ]
    terms, slopes = [], []
    for path in _terms(own):
        moved = _predict(usable, _changed(own, {path: _STEP}))
        slope = np.array([(moved[index][line][0] - bounds[0]) / _STEP for index, line, _, _, bounds in found])
        if np.any(slope):
            terms.append(path)
            slopes.append(slope)
    bounds = np.array([one[4] for one in found], dtype=float).reshape(-1, 3)
    return _Figures(
        row=np.array([one[0] for one in found]),
        line=np.array([one[1] for one in found]),
        kind=np.array([_kind(usable[one[0]], one[1]) for one in found]),
        source=np.array([one[2] for one in found]),
        measured=np.array([one[3] for one in found], dtype=float),
        predicted=bounds[:, 0],
        half=np.maximum((bounds[:, 2] - bounds[:, 1]) / 2, 1e-9),
        terms=tuple(terms),
        slopes=np.array(slopes, dtype=float).T.reshape(len(found), len(terms)),
    )


def _kind(question: StartQuestion, line: str) -> str:
    if line != _WEIGHTS:
        return line
    if question.model.multimodal:
        return "weights with vision"
    return "exact weights" if question.quantization == "none" else "quantised weights"


def _measured(row: Row, question: StartQuestion, line: str) -> float | None:
    if line == _WEIGHTS and question.weights_unstated:
        return None
    try:
        return row.number(line, low=0.001, high=65536)
    except UnusableRow:
        return None


def _predict(
    questions: Mapping[int, StartQuestion], coefficients: FittedRows
) -> dict[int, dict[str, tuple[float, float, float]]]:
    """(value, low, high) GiB of every printed line, by row."""
    found: dict[int, dict[str, tuple[float, float, float]]] = {}
    for index, question in questions.items():
        try:
            start = start_of(replace(question, changed={FITTED_FILE: coefficients}))
        except InputError:
            continue
        found[index] = {line: _gib(lines_bytes(start, names)) for line, names in PRINTED_LINES.items()}
    return found


def _gib(bounds: tuple[float, float, float]) -> tuple[float, float, float]:
    return bounds[0] / GIB, bounds[1] / GIB, bounds[2] / GIB


def _own() -> FittedRows:
    return {table: list(rows) for table, rows in shipped(FITTED_FILE).items()}


def _named(path: TermPath) -> str:
    """A term in words: ``graphs.fixed_gib``, with the version of its row where others state the number too."""
    table, place, name = path
    rows = shipped(FITTED_FILE)[table]
    since = f" since {rows[place]['since']}" if sum(name in row for row in rows) > 1 else ""
    return f"{table}.{name}{since}"


def _terms(coefficients: FittedRows) -> list[TermPath]:
    """Paths of every fitted number; what follows from the engine's source is none."""
    return [
        (table, place, name)
        for table in FITTED_TABLES
        for place, row in enumerate(coefficients.get(table, ()))
        for name, value in row.items()
        if _is_number(value) and (table, name) not in _READ_OFF and name not in row.get("counted", ())
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _changed(coefficients: FittedRows, changes: Mapping[TermPath, float]) -> FittedRows:
    """A copy with the numbers at some paths changed by a share of themselves."""
    copied = copy.deepcopy(coefficients)
    for (table, place, name), change in changes.items():
        copied[table][place][name] *= 1 + change
    return copied


def _fit(figures: _Figures, keep: Any) -> tuple[FittedRows, list[TermPath]]:
    """Coefficients from the figures in ``keep``, and the terms about which these say nothing."""
    fitted = keep & (figures.line != _WEIGHTS)
    informed = _informed(figures, fitted)
    change = np.where(informed, _robust(figures, fitted, informed), 0.0)
    changes = {path: float(change[i]) for i, path in enumerate(figures.terms) if informed[i]}
    uninformed = [path for i, path in enumerate(figures.terms) if not informed[i]]
    coefficients = _changed(_own(), changes)
    for path in uninformed:
        _borrow(coefficients, path, informed=set(changes))
    predicted = figures.predicted + figures.slopes @ change
    _set_widths(coefficients, figures, keep, predicted)
    return coefficients, uninformed


def _informed(figures: _Figures, keep: Any) -> Any:
    """Which terms the kept figures tell anything about."""
    if not np.any(keep):
        return np.zeros(len(figures.terms), dtype=bool)
    share = np.abs(figures.slopes[keep]) / figures.measured[keep][:, None]
    return np.max(share, axis=0, initial=0.0) >= _LEAST_SHARE


def _robust(figures: _Figures, keep: Any, informed: Any) -> Array:
    """Relative changes of all terms: least squares over the kept figures, reweighted for outliers (Cauchy's loss).

    A slight ridge settles terms that the figures cannot tell apart.
    """
    scale = figures.measured[keep] + _FLOOR_GIB
    matrix = np.where(informed, figures.slopes[keep], 0.0) / scale[:, None]
    errors = (figures.measured[keep] - figures.predicted[keep]) / scale
    sources = _source_weights(figures, keep)
    change = np.zeros(matrix.shape[1])
    for _ in range(20):
        left = np.abs(errors - matrix @ change)
        weights = sources / (1 + np.square(left / _CAUCHY))
        normal = matrix.T @ (weights[:, None] * matrix) + _RIDGE * np.eye(matrix.shape[1])
        change = np.clip(np.linalg.solve(normal, matrix.T @ (weights * errors)), _LEAST_CHANGE, _MOST_CHANGE)
    return np.asarray(change, dtype=float)


def _source_weights(figures: _Figures, keep: Any) -> Array:
    """One over the square root of how many figures a source has: campaigns count more than single rows, not by their size."""
    _, inverse, counts = np.unique(figures.source[keep], return_inverse=True, return_counts=True)
    return np.asarray(1 / np.sqrt(counts[inverse]), dtype=float)


def _borrow(coefficients: FittedRows, path: TermPath, *, informed: set[TermPath]) -> None:
    """Give a term that no kept figure informs the value of the nearest version that is informed; without one it stays."""
    table, place, name = path
    rows = coefficients[table]
    known = [other for other in range(len(rows)) if (table, other, name) in informed]
    if known:
        rows[place][name] = rows[min(known, key=lambda other: abs(other - place))][name]


def _set_widths(coefficients: FittedRows, figures: _Figures, keep: Any, predicted: Array) -> None:
    """Scale the interval widths of each line so that 90 % of the kept figures lie inside: the mean (of logarithms) of what rows
    ask and what sources do, since nine in ten of five sources is the one row that lies farthest off."""
    for kind, words in _WIDTHS.items():
        chosen = keep & (figures.kind == kind)
        if np.count_nonzero(chosen) < _FEWEST:
            continue
        ratio = np.abs(figures.measured[chosen] - predicted[chosen]) / figures.half[chosen]
        order = np.argsort(ratio)
        weights = _source_weights(figures, chosen)[order]
        reached = np.cumsum(weights) / weights.sum()
        of_sources, of_rows = ratio[order][np.searchsorted(reached, 0.9)], np.quantile(ratio, 0.9)
        factor = float(np.clip(np.sqrt(of_sources * of_rows), 0.1, 10.0))
        for row in coefficients["spread"]:
            row |= {name: value * factor for name, value in row.items() if name.startswith(words) and _is_number(value)}
