"""One token and the first one, taken apart for people: where the time goes, how near to the datasheet, what binds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trilemma.estimate.estimate import OperatorTime, SpeedEstimate
from trilemma.report.bars import bar
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped

#: What a line is called on screen.
NAMES = {
    "dense": "dense products",
    "lm_head": "output head",
    "all_reduce": "all-reduce",
    "pipeline": "pipeline hand-over",
    "kernels": "kernel launches",
    "host": "host, a step",
    "host_weights": "weights on the host",
    "host_cache": "cache on the host",
    "handover": "hand-over to the host",
    "draft": "draft passes",
    "prefill": "prefills of others",
}
_FIRST = {
    "request": "request handling",
    "images": "its images",
    "prefill": "its prefill",
    "steps_waited": "the step under way",
    "prefills_ahead": "prefills ahead of it",
    "transfer": "cache to decode",
    "slot": "wait for a slot",
}
#: Lines shown where not all are asked for; the rest is one line.
_MOST = 4
_BAR_CELLS = 16
#: Columns that are not always shown.
_ROOF, _SOURCE = 5, 7
#: Most sources named below a table that has no column for them.
_SOURCES = 2
#: Shown as 100 % still.
_ABOVE = 1.005


def operator_table(speed: SpeedEstimate, *, full: bool, width: int = 100) -> Iterator[str]:
    """The lines of TPOT, longest first, whose milliseconds sum to the total as shown; then what a step and TTFT consist of.

    ``full`` shows every line, its roof, and its source where they differ; else the longest few and the rest in one.
    """
    lines = sorted(speed.operators, key=lambda line: -line.seconds)
    if not lines or speed.tpot_s is None:
        return
    shown, rest = (lines, []) if full or len(lines) <= _MOST + 1 else (lines[:_MOST], lines[_MOST:])
    tpot_s = speed.tpot_s.interval.value
    digits = max(0, 3 - math.floor(math.log10(tpot_s * 1e3)))
    rows = _rows(shown, rest, tpot_s, digits)
    headers = [f"a token at batch {speed.batch or 1:,.0f}", "ms", "share", "", "of roof", "roof ms", "bound by", "from"]
    sources = list(dict.fromkeys(line.source for line in lines))
    several = full and len(sources) > 1
    kept = [at for at in range(len(headers)) if (full or at != _ROOF) and (several or at != _SOURCE)]
    yield from render_table(
        [headers[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        align="".join("lrrlrrll"[at] for at in kept),
        width=width,
        yields=("from", "roof ms"),
    ).splitlines()
    yield from _notes(lines, () if several else sources, width)
    if full or any(line.name == "draft" for line in lines):
        yield from _step(speed, digits)
    yield from _first_token(speed, width)


def _rows(shown: Sequence[OperatorTime], rest: Sequence[OperatorTime], tpot_s: float, digits: int) -> list[list[str]]:
    """A row for each line of ``shown``, one for ``rest`` if there is any, and TPOT, which they sum to."""
    left_s = sum(line.seconds for line in rest)
    seconds = [line.seconds for line in shown] + ([left_s] if rest else [])
    milliseconds = [f"{one:,.{digits}f}" for one in rounded_to_sum([one * 1e3 for one in seconds], digits)]
    rows = [_row(line, taken, digits) for line, taken in zip(shown, milliseconds, strict=False)]
    if rest:
        rows.append([f"{len(rest)} shorter", milliseconds[-1], *_share(left_s / tpot_s), "", "", "", ""])
    return [*rows, ["TPOT", f"{tpot_s * 1e3:,.{digits}f}", "", "", "", "", "", ""]]


def rounded_to_sum(values: Sequence[float], digits: int) -> list[float]:
    """``values`` rounded to ``digits`` so that they sum to their rounded sum: those cut most are rounded up first."""
    unit = 10.0**-digits
    steps = [math.floor(value / unit) for value in values]
    missing = round(sum(values) / unit) - sum(steps)
    order = sorted(range(len(values)), key=lambda at: steps[at] - values[at] / unit)
    for at in order[:missing]:
        steps[at] += 1
    return [step * unit for step in steps]


def _row(line: OperatorTime, milliseconds: str, digits: int) -> list[str]:
    fraction = line.fraction_of_roof
    return [
        NAMES.get(line.name, line.name.replace("_", " ")),
        milliseconds,
        *_share(line.share),
        "–" if fraction is None else f"{fraction:.0%}",
        "–" if line.roof_s is None else f"{line.roof_s * 1e3:,.{digits}f}",
        line.bound_by.replace("_", " "),
        line.source,
    ]


def _share(share: float) -> list[str]:
    return [f"{share:.0%}", bar(share, _BAR_CELLS).rstrip()]


def _notes(lines: Sequence[OperatorTime], sources: Sequence[str], width: int) -> Iterator[str]:
    text = "roof: the same work at the datasheet's peak, bandwidth and links"
    if sources:
        more = f" and {len(sources) - _SOURCES} more" if len(sources) > _SOURCES else ""
        text += f"; seconds: {', '.join(sources[:_SOURCES])}{more}"
    above = [NAMES.get(line.name, line.name) for line in lines if (line.fraction_of_roof or 0.0) > _ABOVE]
    if above:
        text += f"; above 100 %: {', '.join(above)}, since runs tell the sum of the lines better than each"
    yield from wrapped(text, width)


def _step(speed: SpeedEstimate, digits: int) -> Iterator[str]:
    """A step with its drafts, the tokens it makes, and the prefills on top."""
    if speed.tpot_s is None or speed.step_s is None:
        return
    tpot_s, step_s = speed.tpot_s.interval.value, speed.step_s.interval.value
    prefill_s = sum(line.seconds for line in speed.operators if line.name == "prefill")
    tokens = step_s / (tpot_s - prefill_s)
    drafts_s = tokens * sum(line.seconds for line in speed.operators if line.name == "draft")
    bare, prefills = rounded_to_sum([(tpot_s - prefill_s) * 1e3, prefill_s * 1e3], digits)
    made = (
        f" makes {tokens:,.2f} tokens of a sequence, drafts {drafts_s * 1e3:,.{digits}f} ms of it" if drafts_s else ""
    )
    yield (
        f"decode step {step_s * 1e3:,.{digits}f} ms{made}: {bare:,.{digits}f} ms a token"
        f" + prefills of others {prefills:,.{digits}f} ms"
    )


def _first_token(speed: SpeedEstimate, width: int) -> Iterator[str]:
    if not speed.ttft_lines or speed.ttft_s is None:
        return
    total_s = speed.ttft_s.interval.value
    per_s, word, digits = (1.0, "s", 2) if total_s >= 1 else (1e3, "ms", 1)
    parts = rounded_to_sum([seconds * per_s for seconds in speed.ttft_lines.values()], digits)
    words = [
        f"{_FIRST.get(name, name)} {part:,.{digits}f}"
        for name, part in zip(speed.ttft_lines, parts, strict=True)
        if part > 0
    ]
    yield from wrapped(
        f"first token {total_s * per_s:,.{digits}f} {word} = {' + '.join(words)}", width, subsequent_indent="    "
    )
