"""The notebook of examples/, run from top to bottom, as a page of the site."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "trilemma.ipynb"
#: Seconds that one cell may take.
_CELL_S = 60
#: What of an output is shown, the first that is there.
_SHOWN = ("image/svg+xml", "text/html", "text/plain")


def executed() -> Any:
    """The notebook with the outputs of every cell. Raises `nbclient.exceptions.CellExecutionError` for the first that fails."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    book = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        book, timeout=_CELL_S, kernel_name="python3", resources={"metadata": {"path": NOTEBOOK.parent}}
    )
    client.execute()
    return book


def notebook_page() -> str:
    """Its cells and what they answer, as Markdown."""
    parts = []
    for cell in executed().cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [_output(one) for one in cell.outputs]
    return "\n\n".join(parts) + "\n"


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    kind = next(one for one in _SHOWN if one in output.data)
    text = output.data[kind]
    return f"<pre>{html.escape(text)}</pre>" if kind == "text/plain" else f'<div class="answer">\n{text}\n</div>'
