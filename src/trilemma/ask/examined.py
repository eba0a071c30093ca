"""This machine, or another by what its tools printed, examined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trilemma.ask.answers import Shown
from trilemma.diagnosis.reading import read
from trilemma.diagnosis.sources import files_of
from trilemma.errors import InputError, shorten
from trilemma.machine.examination import Examination, examine
from trilemma.machine.machine import machine_of, this_machine


def doctor(outputs: str | Path | Sequence[str | Path] | None = None) -> Examined:
    """What is wrong with this machine, or with the one whose tools printed ``outputs`` (files, folders, ``-``)."""
    if outputs is None or (not isinstance(outputs, str | Path) and not outputs):
        return Examined.of(examine(this_machine(examined=True)))
    paths = [outputs] if isinstance(outputs, str | Path) else list(outputs)
    readings = [read(name) for name in files_of(paths)]
    if not any(one.parts for one in readings):
        why = next((f": {one.why}" for one in readings if one.why), "")
        shown = shorten(", ".join(map(str, paths)))
        raise InputError(
            f"{shown} holds nothing that a machine's tools print{why}; give outputs of nvidia-smi, rocm-smi, pip freeze …"
        )
    return Examined.of(examine(machine_of(readings, recorded=True)))


class Examined(Shown, Examination):
    """Checks and findings, as an answer that shows itself."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether no fault was found."""
        return self.healthy

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.examination import render_examination

        return render_examination(self, explain=explain, width=width)
