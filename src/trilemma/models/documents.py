"""JSON files from outside: bounded in size, with errors that name the file and the remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_bytes

#: The largest config.json in use (quantised mixtures that list every layer) is under 3 MB.
MAX_CONFIG_BYTES = 16 * 2**20


def read_json(
    path: Path, *, limit: int = MAX_CONFIG_BYTES, give: str = "give a config.json or the folder that holds one"
) -> dict[str, Any]:
    """The object in ``path``; ``give`` says what would be right where it cannot be read. Raises `InputError` when it is
    missing, larger than ``limit`` bytes or not a JSON object."""
    raw = read_bytes(path, most_bytes=limit, give=give)
    return parse_object(raw, what=shorten(str(path)))


def parse_object(raw: bytes, *, what: str, unique: bool = False) -> dict[str, Any]:
    """``raw`` as a JSON object; ``unique`` refuses a key given twice.

    Raises `InputError` for text that is not UTF-8, cut off, nested beyond the parser's recursion limit, or no object.
    """
    try:
        text = raw.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_unique_pairs if unique else None)
    except UnicodeDecodeError:
        raise InputError(f"{what} is not UTF-8 text; fetch it again") from None
    except _RepeatedKeyError as error:
        raise InputError(f"{what} gives the key {shorten(repr(error.key))} twice; fetch it again") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not valid JSON ({shorten(str(error))}); fetch it again") from None
    if not isinstance(value, Mapping):
        raise InputError(f"{what} holds no JSON object; fetch it again")
    return dict(value)


def overlaid(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with ``overrides`` in place; a mapping changes the section of its name key by key.

    As vLLM lays ``--hf-overrides`` over a configuration (vllm/transformers_utils/config.py).
    """
    merged = dict(config)
    for key, value in overrides.items():
        section = merged.get(key)
        if isinstance(value, Mapping) and isinstance(section, Mapping):
            value = {**section, **value}
        merged[key] = value
    return merged


class _RepeatedKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(key)
            seen.add(key)
    return found
