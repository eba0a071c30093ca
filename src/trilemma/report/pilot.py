"""A pilot beside its prediction, for people and as ``trilemma/pilot@1``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trilemma.columns import column, document_of
from trilemma.data.digest import Made, made_by
from trilemma.measuring.gaps import Gap, Piloted, gap_words
from trilemma.quantities import GIB
from trilemma.report.tables import render_table


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotFigure:
    """One figure in its ``unit``; ``error`` is predicted over measured minus one, ``of`` the figure that it is a part of."""

    figure: str
    unit: str
    predicted: float
    measured: float
    error: float
    of: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotDocument:
    """``gaps`` says for each figure that is off where most of it comes from."""

    schema: str = "trilemma/pilot@1"
    made_by: Made = field(metadata=column(exact=True))
    device: str
    card: str
    model: str
    parameters: float
    format: str
    recompute: bool
    seq: int
    micro_batch: int
    isl: int
    osl: int
    decode_batch: int
    figures: tuple[PilotFigure, ...] = field(metadata=column(keep="empty"))
    gaps: tuple[str, ...] = field(metadata=column(keep="empty"))


def pilot_document(found: Piloted) -> dict[str, Any]:
    asked = found.asked
    document = PilotDocument(
        made_by=made_by(), device=found.device, card=found.card, model=found.model, parameters=found.parameters,
        format=asked.fmt, recompute=asked.recompute, seq=asked.seq, micro_batch=asked.micro_batch, isl=asked.isl, osl=asked.osl,
        decode_batch=asked.decode_batch, figures=tuple(map(_figure, found.gaps)), gaps=tuple(gap_words(list(found.gaps))),
    )  # fmt: skip
    return document_of(document)


def _figure(gap: Gap) -> PilotFigure:
    return PilotFigure(
        figure=gap.figure, unit=gap.unit, predicted=gap.predicted, measured=gap.measured, error=gap.error, of=gap.of
    )


def render_pilot(found: Piloted, *, width: int | None = None) -> str:
    asked = found.asked
    how = f"{asked.fmt}, {'every layer recomputed' if asked.recompute else 'nothing recomputed'}"
    lines = [
        f"{found.model}, {found.parameters / 1e6:,.1f} M parameters, random weights, {how}",
        f"on {found.device}; predicted for it {found.card}" if found.card.startswith("as ") else
        f"on {found.device}; predicted for {found.card}",
        f"training {asked.micro_batch} x {asked.seq} tokens; generating {asked.osl} tokens for {asked.decode_batch} prompts of"
        f" {asked.isl}",
    ]  # fmt: skip
    rows = [
        ["  " * bool(gap.of) + gap.figure, _shown(gap.predicted, gap.unit), _shown(gap.measured, gap.unit), _error(gap)]
        for gap in found.gaps
    ]
    table = render_table(["", "predicted", "measured", "error"], rows, align="lrrr", width=width)
    words = "".join(f"\n- {one}" for one in gap_words(list(found.gaps)))
    return "\n".join(lines) + f"\n\n{table}\n{words}".rstrip("\n")


def _error(gap: Gap) -> str:
    return f"{gap.error:+.1%}" if gap.measured else "–"


def _shown(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / GIB:.3f} GiB"
    if unit == "s":
        return f"{value * 1e3:,.1f} ms"
    return f"{value:.1%}" if unit == "share" else f"{value:,.1f}/s"
