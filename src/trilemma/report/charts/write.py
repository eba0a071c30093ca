"""Writes a chart: a picture, or a page that needs no network."""

from __future__ import annotations

import html
import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.foreign_words import shown
from trilemma.outside_files import written
from trilemma.report.charts.theme import Spec

SUFFIXES = (".png", ".svg", ".html")
_SCALE = 2.0
#: A page may run what it holds and fetch nothing; Vega compiles its expressions, hence unsafe-eval.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
_EMBED = {"renderer": "svg", "actions": {"export": True, "source": False, "compiled": False, "editor": False}}


def chart_file(text: str) -> Path:
    """The file to draw to, checked before any work: its kind, its folder, and that the extra is installed.

    Raises `InputError` for an unknown suffix, a folder that is not there or not writable, or the extra missing.
    """
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--chart {shorten(text)}: no such kind of picture; give *.png, *.svg or *.html")
    folder = path.parent
    with written(text, what="--chart"):  # a name may be longer than the file system allows
        if not folder.is_dir():
            raise InputError(f"--chart {shorten(text)}: there is no folder {shorten(str(folder))}; make it first")
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise InputError(f"--chart {shorten(text)} cannot be written; give another file")
    if importlib.util.find_spec("vl_convert") is None:
        raise InputError("--chart needs the extra for charts; pip install 'trilemma[charts]'")
    return path


def write_chart(spec: Spec, path: Path) -> None:
    """Draw ``spec`` to ``path`` as its suffix says. Raises `InputError` where the file cannot be written."""
    converter = importlib.import_module("vl_convert")
    spec = printable(spec)
    kind = path.suffix.lower()
    content: bytes
    if kind == ".png":
        content = converter.vegalite_to_png(spec, scale=_SCALE, allowed_base_urls=[])
    elif kind == ".svg":
        content = svg_of(spec).encode()
    else:
        content = page(spec, converter.javascript_bundle()).encode()
    with written(path, what="--chart"):
        path.write_bytes(content)


def svg_of(spec: Spec) -> str:
    """``spec`` drawn as SVG; nothing is fetched for it. Raises `InputError` where the extra is not installed."""
    if importlib.util.find_spec("vl_convert") is None:
        raise InputError("charts need the extra for charts; pip install 'trilemma[charts]'")
    return str(importlib.import_module("vl_convert").vegalite_to_svg(spec, allowed_base_urls=[]))


def printable(value: Any) -> Any:
    """``value`` with every text in it such as any encoding and any reader takes: names come from files and folders."""
    if isinstance(value, str):
        return shown(value, keeping="\n")
    if isinstance(value, dict):
        return {printable(key): printable(one) for key, one in value.items()}
    return [printable(one) for one in value] if isinstance(value, list | tuple) else value


def page(spec: Spec, libraries: str) -> str:
    """One HTML file with the libraries inside. Names in ``spec`` come from files: nothing in them may end the script."""
    title = html.escape(str(spec["title"]["text"]))
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{title}</title>\n"
        f"<script>{libraries}</script>\n"
        '</head>\n<body>\n<div id="chart"></div>\n'
        f"<script>vegaEmbed('#chart', {_script_json(spec)}, {_script_json(_EMBED)}).catch(console.error);</script>\n"
        "</body>\n</html>\n"
    )


def _script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no tag and no line separator of JavaScript can appear in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
