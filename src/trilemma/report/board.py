"""The board as one page that fetches and runs nothing: errors by who measured, engine, card, age and trust."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from trilemma.data.digest import made_by
from trilemma.measured.board import TRUST, Board, BoardFigure, BoardLine, age_of, lines, main_metrics
from trilemma.measured.metrics import Errors
from trilemma.quantities import counted
from trilemma.report.tables import one_line

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,"Noto Sans",sans-serif;max-width:72rem;margin:0 auto;padding:1.5rem 1rem;
color:#1c1f24;background:#fbfbfa}
h1{font-size:1.35rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .3rem;border-top:1px solid #d9dce1;padding-top:1rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}p{margin:.3rem 0}.faint{color:#5a616c}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem;min-width:60%}
th,td{text-align:left;padding:.22rem .8rem .22rem 0;border-bottom:1px solid #e6e8ec;vertical-align:top}
th{color:#5a616c;font-weight:500}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.bar{display:inline-block;height:.6em;background:#0072b2;border-radius:2px;margin-left:.5em;vertical-align:baseline}
.id{max-width:28rem;overflow-wrap:anywhere}summary{cursor:pointer;margin:.8rem 0 .3rem}
footer{color:#5a616c;font-size:.85rem;margin-top:2rem}
@media(prefers-color-scheme:dark){body{background:#14161a;color:#e8eaee}h2{border-color:#3a3f49}th,td{border-color:#2b2f37}
th,.faint,footer{color:#a4abb6}.bar{background:#56b4e9}}
"""
#: Values of a class and worst rows that are shown, and pixels of a bar at an error of 100 %.
_MOST_LINES, _WORST, _BAR = 60, 20, 120
#: Figures of a table that are told by class.
_MAIN = 3


def board_page(board: Board) -> str:
    """The whole page, text as text."""
    figures = len(board.figures)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>Accuracy board</title><style>{_STYLE}</style></head><body><main>",
        "<h1>Accuracy board</h1>",
        f'<p class="faint">{counted(figures, "measured figure")} of {counted(len(board.tables), "table")} beside their'
        f" predictions, as of {board.on.isoformat()}. Errors are shares of what was measured; inside: within the predicted 90 %"
        " range; stale: of an engine's version since which facts that the prediction rests on have changed.</p>",
    ]
    if board.peers:
        parts += _peers(board)
    for name in board.tables:
        parts += _table(board, name)
    made = made_by()
    parts.append(f"</main><footer>trilemma {made['version']}, facts {made['data_digest']}</footer></body></html>\n")
    return "\n".join(parts)


def _table(board: Board, name: str) -> list[str]:
    validation, figures = board.tables[name], board.of(name)
    by: tuple[tuple[str, Callable[[BoardFigure], str]], ...] = (
        ("by who measured", lambda one: one.origin),
        ("by engine", lambda one: f"{one.engine} {_release(one.version)}".strip()),
        ("by card", lambda one: one.card),
        ("by age", lambda one: age_of(one, board.on)),
        ("by trust", lambda one: one.trust),
    )
    parts = [
        f"<h2>{html.escape(name)}</h2>",
        f'<p class="faint">{html.escape(validation.kind)}: {validation.used} of {counted(validation.rows, "row")} judged.'
        f" {_trust_words(figures)}</p>",
        _lines("figure", lines(figures, lambda one: one.comparison.metric), with_metric=False),
    ]
    main = main_metrics(figures, _MAIN)
    told = [one for one in figures if one.comparison.metric in main]
    for title, of in by:
        found = lines(told, of)
        body = _lines(title.removeprefix("by "), found[:_MOST_LINES])
        more = f'<p class="faint">and {len(found) - _MOST_LINES} more</p>' if len(found) > _MOST_LINES else ""
        parts.append(f"<details open><summary>{title}</summary>{body}{more}</details>")
    return [*parts, "<h3>farthest off</h3>", _worst(told)]


def _release(version: str) -> str:
    """The first two numbers of a version; other words as they are, cut."""
    words = version.split()
    return ".".join(words[-1].split(".")[:2])[:16] if words else ""


def _trust_words(figures: Sequence[BoardFigure]) -> str:
    return "; ".join(f"{sum(one.trust == tier for one in figures):,} {tier}" for tier in TRUST)


def _lines(title: str, found: Sequence[BoardLine], *, with_metric: bool = True) -> str:
    heads = [title, *(["figure"] if with_metric else []), "n", "median error", "P90", "bias", "inside", "stale"]
    rows = []
    for line in found:
        stale = f"{line.stale} of {line.dated}" if line.dated else "–"
        rows.append([line.value, *([line.metric] if with_metric else []), *_figures(line.errors), stale])
    return _html_table(heads, rows, words=2 if with_metric else 1)


def _figures(stats: Errors) -> list[str]:
    inside = "–" if stats.coverage90 is None else f"{stats.coverage90:.0%}"
    return [f"{stats.n:,}", f"{stats.median_ape:.1%}", f"{stats.p90_ape:.1%}", f"{stats.bias:+.1%}", inside]


def _worst(figures: Sequence[BoardFigure]) -> str:
    found = sorted(figures, key=lambda one: -abs(one.error))[:_WORST]
    rows = [
        [one.row_id, one.comparison.metric, f"{one.comparison.predicted:,.5g}", f"{one.comparison.measured:,.5g}",
         f"{one.error:+.0%}", one.trust, one.source[:160]]
        for one in found
    ]  # fmt: skip
    heads = ["row", "figure", "predicted", "measured", "error", "trust", "source"]
    return _html_table(heads, rows, words=2, tail=2)


def _peers(board: Board) -> list[str]:
    rows = [
        [one.tool, one.metric, f"{one.n:,}", f"{one.ours.median_ape:.1%}", f"{one.theirs.median_ape:.1%}",
         f"{one.ours.mape:.1%}", f"{one.theirs.mape:.1%}"]
        for one in board.peers
    ]  # fmt: skip
    heads = ["tool", "figure", "n", "ours, median", "theirs", "ours, mean", "theirs"]
    return ["<h2>Other tools on the same rows</h2>", _html_table(heads, rows, words=2)]


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: int, tail: int = 0) -> str:
    """The first ``words`` and last ``tail`` columns are words, the others numbers; a bar stands beside a median error."""

    def css(at: int) -> str:
        return ' class="n"' if words <= at < len(heads) - tail else ' class="id"'

    def cell(at: int, text: str) -> str:
        bar = ""
        if heads[at] == "median error":
            share = min(1.0, float(text.rstrip("%")) / 100)
            bar = f'<span class="bar" style="width:{_BAR * share:.0f}px"></span>'
        return f"<td{css(at)}>{html.escape(one_line(text))}{bar}</td>"

    head = "".join(f"<th{css(at)}>{html.escape(text)}</th>" for at, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell(at, text) for at, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
