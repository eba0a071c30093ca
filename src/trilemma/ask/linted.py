"""What is wrong with files before they run, as an answer that shows itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trilemma.ask.answers import Shown
from trilemma.linting.files import Linting
from trilemma.linting.files import lint as lint_files


def lint(paths: str | Path | Sequence[str | Path], gpu: Any = None) -> Linted:
    """What is wrong with scripts, notebooks, configurations, manifests and files of commands; ``gpu`` judges recipes too."""
    from trilemma.ask.checking import cards_of
    from trilemma.ask.questions import named_cards

    card = None if gpu is None else cards_of(named_cards(gpu))[0]
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    return Linted.of(lint_files(names, card=card))


class Linted(Shown, Linting):
    """Findings of a linter, the gravest first."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether nothing is wrong."""
        return self.healthy

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.linting import render_linting

        return render_linting(self, explain=explain, width=width)
