"""An answer as one page to send to a colleague: it fetches nothing, runs nothing, and holds the document that programs read."""

from __future__ import annotations

import base64
import html
import importlib.util
from typing import Any

from trilemma.data.digest import made_by

#: Nothing is fetched or run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:76rem;margin:0 auto;padding:1.5rem 1rem;color:#1c1f24;background:#fbfbfa}
h1{font-size:1.3rem;margin:0 0 .5rem;font-weight:600}
p.verdict{padding:.6rem .9rem;border-radius:6px;margin:0 0 1rem;white-space:pre-wrap}
p.yes{background:#e5f4ea;color:#17683a}p.no{background:#fbe9e7;color:#9c2116}
pre{font:13px/1.45 ui-monospace,"DejaVu Sans Mono",monospace;background:#fff;border:1px solid #d9dce1;border-radius:6px;
padding:.8rem;overflow-x:auto}
img{max-width:100%;background:#fff;border-radius:6px}
summary{cursor:pointer;margin:1rem 0 .5rem}footer{color:#5a616c;font-size:.85rem;margin-top:1.5rem}
@media(prefers-color-scheme:dark){body{background:#14161a;color:#e8eaee}pre{background:#1d2026;border-color:#3a3f49}
p.yes{background:#17301f;color:#7fd8a2}p.no{background:#3a1b18;color:#f6a59b}footer{color:#a4abb6}}
"""


def answer_page(
    *, screen: str, explained: str, document: str, yes: bool, chart: dict[str, Any] | None, asked: str = ""
) -> str:
    """``screen`` and ``explained`` are what a terminal shows, ``document`` is JSON, ``chart`` a Vega-Lite specification (drawn
    where the extra is installed), ``asked`` the question."""
    head, _, rest = screen.partition("\n\n")
    title, _, verdict = head.partition("\n")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    if verdict.strip():
        parts.append(f'<p class="verdict {"yes" if yes else "no"}">{html.escape(verdict)}</p>')
    if rest.strip():
        parts.append(f'<pre tabindex="0">{html.escape(rest)}</pre>')
    if chart is not None and importlib.util.find_spec("vl_convert") is not None:
        parts.append(f'<img alt="{html.escape(_said(chart))}" src="data:image/svg+xml;base64,{_drawn(chart)}">')
    if explained != screen:
        parts.append(
            f'<details><summary>How each line comes about</summary><pre tabindex="0">{html.escape(explained)}</pre></details>'
        )
    if asked:
        parts.append(f"<p>Asked as</p><pre>{html.escape(asked)}</pre>")
    # no tag ends inside of a script element that holds no "<"
    parts.append(f'<script type="application/json" id="document">{document.replace("<", chr(92) + "u003c")}</script>')
    made = made_by()
    parts.append(f"</main><footer>trilemma {made['version']}, facts {made['data_digest']}</footer></body></html>\n")
    return "\n".join(parts)


def _drawn(chart: dict[str, Any]) -> str:
    from trilemma.report.charts.write import printable, svg_of

    return base64.b64encode(svg_of(printable(chart)).encode()).decode("ascii")


def _said(chart: dict[str, Any]) -> str:
    """What the picture shows, for who cannot see it: its description, else its title."""
    title = chart.get("title")
    words = title.get("text") if isinstance(title, dict) else title
    return str(chart.get("description") or words or "chart of the answer")
