"""Answers as a notebook or script wants them: the documents and screens of the command line, and the parts by name."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from trilemma.ask.screen import screen_width
from trilemma.estimate.estimate import Estimate

#: Columns of a notebook's cell.
_PAGE_WIDTH = 120


class Shown:
    """What every answer can do: ``str`` is the screen of its command, ``to_dict`` and ``to_json`` its document."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def fits(self) -> bool: ...

    @classmethod
    def of(cls, result: Any) -> Self:
        """The answer that shows ``result``, an instance of the dataclass that this class adds its faces to."""
        return cls(**{one.name: getattr(result, one.name) for one in fields(result)})

    @property
    def yes(self) -> bool:
        """Whether the command says yes, with exit code 0."""
        return self.fits

    def document(self, *, explain: bool) -> dict[str, Any]:
        """Plain data of every column (`trilemma.columns`); ``explain`` adds what is explained."""
        from trilemma.columns import document_of

        return document_of(self, explain=explain)

    def show(self, *, explain: bool = False, width: int | None = None) -> str:
        """The screen of the command, ``width`` columns wide (default: the terminal's)."""
        from trilemma.report.wrapping import within

        width = width or screen_width()
        return within(self.screen(explain=explain, width=width), width)

    def screen(self, *, explain: bool, width: int) -> str:
        """What is shown; lines of prose may still be too long."""
        raise NotImplementedError

    def chart(self) -> dict[str, Any] | None:
        """What the command draws, as a Vega-Lite specification; None where it draws nothing."""
        return None

    def to_dict(self, *, explain: bool = False) -> dict[str, Any]:
        """The document that the command prints with ``--json``; ``explain`` adds inputs and source of each line."""
        from trilemma.report.document import plain

        return dict(plain(self.document(explain=explain)))

    def to_json(self, *, explain: bool = False, indent: int | None = 2) -> str:
        """The document as the text that the command prints; without ``indent`` on one line."""
        from trilemma.report.document import dumps

        return dumps(self.document(explain=explain), indent=indent)

    def page(self, *, asked: str = "") -> str:
        """One HTML page that needs nothing else: the screen, the picture (extra ``charts``), what explains it, and the document.

        ``asked`` is the command or question that it answers.
        """
        from trilemma.report.page import answer_page

        return answer_page(
            screen=self.show(width=_PAGE_WIDTH), explained=self.show(explain=True, width=_PAGE_WIDTH), document=self.to_json(),
            yes=self.yes, chart=self.chart(), asked=asked,
        )  # fmt: skip

    def __str__(self) -> str:
        return self.show()

    def _repr_html_(self) -> str:
        from trilemma.report.notebook import cell_html

        screen, explained = self.show(width=_PAGE_WIDTH), self.show(explain=True, width=_PAGE_WIDTH)
        return cell_html(screen=screen, explained=explained, yes=self.yes)


class Answer(Shown, Estimate):
    """An `Estimate` that can show itself: what `fit` and `check` answer, and each plan of `plan`, `train` and `compare`."""

    __slots__ = ()

    @property
    def yes(self) -> bool:
        return self.fits and self.carries

    def document(self, *, explain: bool) -> dict[str, Any]:
        from trilemma.report.document import estimate_document

        return estimate_document(self, explain=explain)

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.text import render_estimate

        return render_estimate(self, explain=explain, width=width)

    def chart(self) -> dict[str, Any] | None:
        """A Vega-Lite specification: roofline, time and memory."""
        from trilemma.report.charts import estimate_chart

        return estimate_chart(self, self.question.cluster.accelerator)

    __repr__ = Estimate.__repr__
    __str__ = Shown.__str__
