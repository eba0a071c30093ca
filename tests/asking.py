"""Questions to the command line, in this process: the document, the screen and the chart of one answer."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from trilemma.cli.main import main


def screen(words: str, *, code: int | None = 0) -> str:
    """What a command prints for people."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        found = main(words.split())
    assert code is None or found == code, words
    return printed.getvalue()


def document(words: str, *, code: int | None = 0) -> dict[str, Any]:
    """What it prints for programs."""
    found: dict[str, Any] = json.loads(screen(f"{words} --json", code=code))
    return found


def chart(words: str, patch: pytest.MonkeyPatch, *, code: int | None = 0) -> dict[str, Any]:
    """What it would draw: the Vega-Lite specification."""
    drawn: list[dict[str, Any]] = []
    with patch.context() as patched:
        patched.setattr("trilemma.report.charts.write_chart", lambda spec, _: drawn.append(spec))
        screen(f"{words} --chart chart.html", code=code)
    (spec,) = drawn
    return spec


def panel(spec: Any, title: str) -> dict[str, Any]:
    """The first panel whose title begins so."""
    for one in _walk(spec):
        shown = one.get("title")
        text = shown.get("text") if isinstance(shown, dict) else shown
        if "data" in one and str(text).startswith(title):
            return one
    raise AssertionError(f"no panel {title!r}")


def rows(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that a panel draws."""
    found: list[dict[str, Any]] = one["data"]["values"]
    return found


def _walk(spec: Any) -> Any:
    if isinstance(spec, dict):
        yield spec
        for value in spec.values():
            yield from _walk(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _walk(value)
