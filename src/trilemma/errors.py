"""The errors a user can meet. Each message is one line that names the offending value and what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from trilemma.columns import column

#: An option in a message, and options whose flag is another word.
_FIELD = re.compile(r"`([a-z][a-z_]*)`")
_FLAGS = {"ttft_ms": "ttft", "tpot_ms": "tpot", "old": "from", "new": "to"}


class TrilemmaError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(TrilemmaError):
    """Something given from outside (an option, a file, a name, a number) cannot be used; the command line exits with 2.

    Options stand in backticks by their names in Python (`` `max_seqs` ``); `flags` says them as the command line does.
    """

    @property
    def fields(self) -> tuple[str, ...]:
        """The options that the message names."""
        return tuple(dict.fromkeys(_FIELD.findall(str(self))))

    @property
    def flags(self) -> str:
        """The message with every option as a flag: ``--max-seqs``."""
        return _FIELD.sub(lambda found: f"--{_FLAGS.get(found[1], found[1]).replace('_', '-')}", str(self))


class GpusUnsaid(InputError):
    """A training command that leaves the number of its GPUs to what the machine has; ``card`` is the one that was named."""

    def __init__(self, card: str = "h100-sxm") -> None:
        many = f"{card}:1 or {card}:8"
        super().__init__(
            f"the command does not say how many GPUs it runs on; say how many there are, such as `gpu` {many}"
        )


def with_flags(error: Exception) -> str:
    """What an error says, options as flags where it names any."""
    return error.flags if isinstance(error, InputError) else str(error)


class UnknownName(InputError):
    """A name that is in no catalogue; the message offers the nearest known names, looked for when it is read: many are not."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        super().__init__(what, name, tuple(known), hint)

    def __str__(self) -> str:
        what, name, known, hint = self.args
        near = nearest(name, known)
        offer = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"unknown {what} {shorten(name)!r}{offer}{f' ({hint})' if hint else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanWarning:
    """Something the reader must know before trusting an answer: what was assumed, widened or left out.

    ``share`` is its own share of doubt in a verdict; None: that of its code (`trilemma.estimate.doubt`).
    """

    code: str
    message: str
    share: float | None = field(default=None, metadata=column(hidden=True))


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Up to ``most`` known names that look like ``name``, nearest first."""
    return difflib.get_close_matches(name.lower()[:200], list(known), n=most, cutoff=0.5)


def shorten(text: str, *, most: int = 80) -> str:
    """``text`` on one line and cut to ``most`` characters, so that a hostile value cannot flood an error message.

    Of a path the end is kept: the file's name says more than where the folders begin.
    """
    if text.startswith("/") and len(text) > most and not any(sign.isspace() for sign in text[:4096]):
        return "…" + text[-(most - 1) :]
    line = " ".join(str(text[: 4 * most]).split())
    return line if len(line) <= most else line[: most - 1] + "…"
