"""What files say is wrong, as an answer that shows itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trilemma.ask.answers import Shown
from trilemma.ask.options import CHECK, settled
from trilemma.diagnosis.judging import Diagnosis, judge
from trilemma.hardware.network import parse_network

if TYPE_CHECKING:
    from trilemma.estimate.estimate import Estimate


def diagnose(
    paths: str | Path | Sequence[str | Path],
    command: str | Sequence[str] = (),
    gpu: Any = None,
    *,
    beside: Estimate | None = None,
    **options: Any,
) -> Diagnosed:
    """What logs, traces, dumps and telemetry say is wrong; files, folders, or ``-`` for standard input, judged together.

    ``command`` is what ran, on ``gpu``, with the options of `check`; or ``beside`` is an answer of `fit` or `check` to hold the
    run against. Without either the command is looked for in the files.
    """
    from trilemma.ask.checking import words_of
    from trilemma.ask.expecting import expecting

    asked = settled(CHECK, options)
    network = None if asked.network is None else parse_network(asked.network)
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    expect = expecting(words_of(command), gpu, beside, asked)
    return Diagnosed.of(judge(files, expect=expect, network_bytes_per_s=network))


class Diagnosed(Shown, Diagnosis):
    """Findings, the gravest first, beside what was read."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether nothing is wrong."""
        return self.healthy

    def document(self, *, explain: bool) -> dict[str, Any]:  # noqa: ARG002 - the document holds every fact already
        from trilemma.report.findings import document

        return dict(document(self))

    def screen(self, *, explain: bool, width: int) -> str:
        """The findings in words; ``explain`` adds the facts of every file."""
        from trilemma.report.findings import render

        return render(self, explain=explain, width=width)

    def __repr__(self) -> str:
        return f"<Diagnosed: {len(self.findings)} findings in {len(self.files)} files>"

    __str__ = Shown.__str__
