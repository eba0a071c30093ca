"""Words that come from outside: names of folders, plans and files, values of configurations.

They may hold anything: line breaks that would start a second line of a script, escape sequences that would rewrite a terminal,
marks that turn the direction of text, halves of characters that no encoding has. Shown, such signs are replaced; written into a
file that something runs, they are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from trilemma.errors import InputError, shorten

_REPLACED = "\ufffd"


def shown(text: str, *, keeping: str = "") -> str:
    """``text`` with every sign that does not print, other than those in ``keeping``, replaced by one that does."""
    if text.isprintable():
        return text
    strange = {ord(sign): _REPLACED for sign in set(text) if not (sign.isprintable() or sign in keeping)}
    return text.translate(strange) if strange else text


@contextmanager
def unwarned() -> Iterator[None]:
    """Around the parsing of an expression from outside: what later releases of Python will read differently in it (``[[``, ``--``
    inside a set) is told by Python on stderr, where an answer holds one line or none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def written(words: Iterable[str], *, what: str) -> None:
    """Raise `InputError` for the first of ``words`` that holds a sign which does not print: files are not written with it."""
    for word in words:
        if not word.isprintable():
            raise InputError(f"{what} {shorten(word)!r} holds a line break or control character; rename it")
