"""JSON that stands in a pasted command without the quotes a shell needs: documents and recipes print it so."""

from __future__ import annotations

import json
import re

from trilemma.errors import PlanWarning

#: Where a bare value may begin: an object or a list behind a blank or ``--flag=``.
_BEGINS = re.compile(r"(?<=[\s=])[{\[](?=\s*[\"{\[])")
_LONGEST = 1 << 16
_MOST = 64

UNQUOTED = PlanWarning(
    code="unquoted-json",
    message="the command holds JSON without quotes around it, which a shell takes apart; put it in single quotes",
)


def quoted(text: str) -> str:
    """``text`` with every bare JSON object or list of it in single quotes, as it was meant. Anything else stays as it is."""
    parts, at = [], 0
    for _ in range(_MOST):
        begin = next((one.start() for one in _BEGINS.finditer(text, at) if not _is_quoted(text, at, one.start())), None)
        end = None if begin is None else _end_of(text, begin)
        if begin is None or end is None:
            break
        parts += [text[at:begin], "'" + text[begin:end].replace("'", "'\\''") + "'"]
        at = end
    return "".join([*parts, text[at:]])


def _is_quoted(text: str, start: int, at: int) -> bool:
    """Whether a quote that opened after ``start`` is still open at ``at``."""
    quote = ""
    for sign in text[start:at]:
        if sign == quote:
            quote = ""
        elif not quote and sign in "'\"":
            quote = sign
    return bool(quote)


def _end_of(text: str, begin: int) -> int | None:
    """Where the JSON that begins there ends, if it is JSON and a word ends with it."""
    try:
        _, size = json.JSONDecoder().raw_decode(text[begin : begin + _LONGEST])
    except (ValueError, RecursionError):
        return None
    end = begin + size
    return end if end == len(text) or text[end].isspace() or text[end] in ";&|" else None
