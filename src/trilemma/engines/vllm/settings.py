"""What a vLLM command line sets, its ``-O`` levels and dotted keys among it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trilemma.commands import command_line
from trilemma.commands.command_line import FlagSettings
from trilemma.engines.vllm.flags import table

_LEVEL = "--optimization-level"


def read_settings(words: Sequence[str]) -> FlagSettings:
    """Settings of the words after the program's name; a ``--config`` file is read first, so flags on the line win.

    Raises `InputError` for a value that the flag cannot take, a missing value, or an unreadable file.
    """
    settings = command_line.read_settings(_levels(words), table())
    # vLLM gathers dotted keys and appends them as one JSON value, so that a whole one given beside them is lost.
    settings.replaced = [name for name in settings.dotted if name in settings.by_name]
    settings.by_name.update(settings.dotted)
    return settings


def _levels(words: Sequence[str]) -> list[str]:
    """``-O3``, ``-O 3``, ``-O=3`` become ``--optimization-level 3``; ``-O {…}`` the older ``--compilation-config``."""
    out: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word.startswith(("-O.", "-cc.")):
            out.append("--compilation-config" + word[word.index(".") :])
        elif word.startswith("-O"):
            value = word[2:].removeprefix("=")
            if not value and at + 1 < len(words):
                at += 1
                value = words[at]
            out += [_LEVEL if re.fullmatch(r"[0-9]", value) else "--compilation-config", value]
        else:
            out.append(word)
        at += 1
    return out
