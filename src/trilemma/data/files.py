"""How the package's own data files are read and, where a command makes them, written.

Tables that people keep are TOML. Tables that a program makes, and lists of hundreds of rows, are JSON: the standard library
reads those thirty times faster, which a command that answers in a quarter of a second can feel.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from trilemma.data.digest import DATA

#: A mapping of more characters than this is a table, its entries one a line.
_LONGEST_ROW = 500


def read_data(name: str) -> dict[str, Any]:
    """The data file ``name``, a path below ``data/``."""
    text = (DATA / name).read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
    return document


def read_table(name: str, table: str) -> dict[str, Any]:
    """The table ``table`` of a TOML file with the tables inside it, the rest unread; empty where the file has none."""
    text = (DATA / name).read_text(encoding="utf-8")
    parts = ("[" + part for part in text.split("\n["))
    found = [part for part in parts if part.startswith((f"[{table}]", f"[{table}."))]
    content: dict[str, Any] = tomllib.loads("\n".join(found)).get(table, {})
    return content


def table_text(document: Mapping[str, Any]) -> str:
    """``document`` as JSON with one row a line, so that a change of one row is a change of one line."""
    return _text(document, "") + "\n"


def _text(value: Any, margin: str) -> str:
    line, inner = json.dumps(value, ensure_ascii=False), margin + " "
    if isinstance(value, Mapping) and (len(line) > _LONGEST_ROW or not margin):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {_text(part, inner)}" for key, part in value.items()]
        return f"{{\n{inner}" + f",\n{inner}".join(parts) + f"\n{margin}}}"
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        return (
            f"[\n{inner}" + f",\n{inner}".join(json.dumps(part, ensure_ascii=False) for part in value) + f"\n{margin}]"
        )
    return line
