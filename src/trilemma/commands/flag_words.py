"""Values of an engine's flags: words as its parser takes them, and the words that state a value again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from trilemma.commands.flags import Flag
from trilemma.errors import InputError, shorten

#: Human-readable integers of vLLM (``human_readable_int`` in utils/argparse_utils.py) and SGLang: small letters are
#: decimal, capitals binary.
_LETTERS = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_COUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kKmMgGtT])")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_TRUE, _FALSE = frozenset(("true", "1", "yes", "on")), frozenset(("false", "0", "no", "off"))


def parse_value(flag: Flag, text: str, *, shown: str) -> Any:
    """``text`` as the flag's kind says; ``shown`` is the flag as typed. Raises `InputError` naming flag, value and remedy."""
    match flag.kind:
        case "int" | "ints":
            return _in_range(flag, whole(text, shown=shown), shown=shown)
        case "count_or_auto" if text.strip().lower() in ("auto", "-1"):
            return "auto"
        case "count" | "count_or_auto":
            return _in_range(flag, count(text, shown=shown), shown=shown)
        case "float":
            return _in_range(flag, real(text, shown=shown), shown=shown)
        case "json":
            return json_value(text, shown=shown)
        case "switch" | "toggle":
            return boolean(text, shown=shown)
        case _:
            return text


def _in_range(flag: Flag, value: Any, *, shown: str) -> Any:
    if flag.least is not None and value < flag.least:
        raise InputError(f"{shown} {value} is below {flag.least}; give a value of at least {flag.least}")
    if flag.most is not None and value > flag.most:
        raise InputError(f"{shown} {value} is above {flag.most}; give a value of at most {flag.most}")
    return value


def whole(text: str, *, shown: str) -> int:
    if _WHOLE.fullmatch(text.strip()) is None:
        raise InputError(f"{shown} {shorten(text)!r} is not a whole number; give one such as 8")
    return int(text)


def count(text: str, *, shown: str) -> int:
    """A whole number with letters: ``1k`` = 1000, ``1K`` = 1024, ``25.6k`` = 25600, no decimals before a capital."""
    stripped = text.strip()
    match = _COUNT.fullmatch(stripped)
    if match is None:
        if _WHOLE.fullmatch(stripped) is None:
            raise InputError(f"{shown} {shorten(text)!r} is not a whole number; give one such as 32768, 32K or 32k")
        return int(stripped)
    number, letter = match.groups()
    if letter.isupper() and "." in number:
        raise InputError(
            f"{shown} {shorten(text)!r}: the engine takes no decimals before the binary letter {letter}; "
            f"give {number}{letter.lower()} or a whole number"
        )
    return int(float(number) * _LETTERS[letter]) if "." in number else int(number) * _LETTERS[letter]


def real(text: str, *, shown: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{shown} {shorten(text)!r} is not a number; give one such as 0.9")
    return value


def boolean(text: str, *, shown: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise InputError(
            f"{shown} {shorten(text)!r} is neither true nor false; give the flag alone or --no-{shown[2:]}"
        )
    return word in _TRUE


def json_value(text: str, *, shown: str) -> Any:
    """JSON, with bare letters (``80m``) and the older ``key=value,…`` form of ``--limit-mm-per-prompt`` accepted."""
    if len(text) > 2**18:
        raise InputError(f"{shown} is longer than 262,144 characters; give the engine's own short JSON")
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        pass
    pairs = [part.partition("=") for part in text.split(",")]
    if all(sign and key.strip().isidentifier() and _WHOLE.fullmatch(value.strip()) for key, sign, value in pairs):
        return {key.strip(): int(value) for key, _, value in pairs}
    return text


def strict_json(text: str) -> Any:
    """JSON without NaN and infinities, bare numbers with letters expanded. Raises `ValueError` or `RecursionError`."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"\b\d{1,18}(?:\.\d{1,9})?[kKmMgGtT]\b", lambda match: str(count(match.group(), shown="JSON")), parts[index]
        )
    try:
        return json.loads("".join(parts), parse_constant=refuse)
    except InputError as error:
        raise ValueError(str(error)) from error


def dotted_value(text: str) -> Any:
    """The value of ``--config.key value``: JSON when it is JSON, a number with a letter, else the text itself."""
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text


def words_of(flag: Flag, value: Any) -> list[str]:
    """The words that set ``flag`` to ``value`` on a command line."""
    name = f"--{flag.name}"
    if flag.kind == "toggle":
        return [name if value else f"--no-{flag.name}"]
    if flag.kind == "switch":
        return [name] if value else []
    if flag.kind == "optional_text" and value is True:
        return [name]
    if flag.kind == "repeat":
        return [word for one in value for word in (name, value_text(one))]
    if isinstance(value, (list, tuple)) and flag.kind in ("list", "ints"):
        return [name, *(value_text(one) for one in value)] if value else []
    shown = value_text(value)
    return [f"{name}={shown}"] if shown.startswith("-") else [name, shown]


def value_text(value: Any) -> str:
    """A value as one word: mappings and lists as compact JSON, numbers so that they read back the same."""
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, separators=(",", ":"), sort_keys=False)
    return str(value)
