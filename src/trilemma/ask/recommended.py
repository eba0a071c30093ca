"""The answer to which cards to take."""

from __future__ import annotations

from typing import Any

from trilemma.ask.answers import Shown
from trilemma.capacity.choice import Recommendation


class CardsRecommended(Shown, Recommendation):
    """Cards and counts for a need, best first."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether any card of the catalogue does it within the limits."""
        return bool(self.choices)

    def document(self, *, explain: bool) -> dict[str, Any]:
        from trilemma.report.recommendation import recommendation_document

        return recommendation_document(self, explain=explain)

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.recommendation import render_recommendation
        from trilemma.report.text import render_estimate

        told = render_recommendation(self, width=width)
        if not explain or not self.choices:
            return told
        whole = render_estimate(self.choices[0].estimate, explain=True, width=width)
        return f"{told}\n\nthe first in full\n\n{whole}"

    def __repr__(self) -> str:
        first = f"{self.choices[0].gpus} x {self.choices[0].card.name[:40]}" if self.choices else "none"
        return f"<CardsRecommended: {self.model.name[:80]}, {len(self.choices)} of {self.asked} cards, first {first}>"

    __str__ = Shown.__str__
