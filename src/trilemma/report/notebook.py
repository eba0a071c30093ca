"""An answer in a cell of a notebook: its verdict first, what explains it folded away; pictures in place of their data."""

from __future__ import annotations

import html
import importlib.util
from typing import Any

#: What front ends that draw Vega-Lite by themselves register.
_VEGA_LITE = "application/vnd.vegalite.v5+json"
_PRE = "overflow-x:auto;line-height:1.4;font-size:12px;margin:.4em 0"


def cell_html(*, screen: str, explained: str, yes: bool) -> str:
    """``screen`` and ``explained`` are what a terminal shows; ``yes`` is the verdict."""
    head, _, rest = screen.partition("\n\n")
    title = html.escape(head).replace("\n", "<br>")
    parts = [
        f'<div style="border-left:4px solid {"#009E73" if yes else "#D55E00"};padding-left:.8em">',
        f"<strong>{title}</strong>",
    ]
    if rest.strip():
        parts.append(f'<pre style="{_PRE}">{html.escape(rest)}</pre>')
    if explained != screen:
        parts.append(
            f'<details><summary>How each line comes about</summary><pre style="{_PRE}">{html.escape(explained)}</pre></details>'
        )
    parts.append("</div>")
    return "\n".join(parts)


class Picture(dict[str, Any]):
    """A Vega-Lite specification that a notebook shows as an image (extra ``charts``), or drawn by itself where it can."""

    def __repr__(self) -> str:
        return f"<Picture: {self['title']['text']}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:  # noqa: ARG002 - IPython's
        if importlib.util.find_spec("vl_convert") is None:
            return {_VEGA_LITE: dict(self), "text/plain": repr(self)}
        from trilemma.report.charts.write import printable, svg_of

        return {"image/svg+xml": svg_of(printable(dict(self))), "text/plain": repr(self)}
