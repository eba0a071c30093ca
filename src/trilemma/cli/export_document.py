"""Documents of plans as ``trilemma export`` takes them: read within bounds, refused in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten

_MOST_BYTES = 64 * 2**20
_ESTIMATE, _PLANS = "trilemma/estimate@1", "trilemma/plans@1"


def read_document(path: str) -> Mapping[str, Any]:
    from trilemma.commands.bounded_yaml import read_text

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        document = json.loads(read_text(Path(path), most_bytes=_MOST_BYTES), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{shorten(path)} is not a JSON document; give what fit or plan printed with --json"
        ) from error
    if not isinstance(document, Mapping) or document.get("schema") not in (_ESTIMATE, _PLANS):
        raise InputError(
            f"{shorten(path)} is neither {_ESTIMATE} nor {_PLANS}; give what fit or plan printed with --json"
        )
    return document


def chosen(document: Mapping[str, Any], number: int, path: str) -> Mapping[str, Any]:
    plans = document.get("plans") if document["schema"] == _PLANS else [document]
    if not isinstance(plans, list) or not plans:
        raise InputError(f"{shorten(path)} holds no plans")
    if not 1 <= number <= len(plans):
        raise InputError(f"--plan {number} is out of range; {shorten(path)} holds plans 1 to {len(plans)}")
    chosen = plans[number - 1]
    if not isinstance(chosen, Mapping):
        raise InputError(f"{shorten(path)}: plan {number} is not an estimate")
    return chosen


def object_in(value: Any, key: str, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{shorten(path)}: {key} is not an object; give what fit or plan printed with --json")
    return value
