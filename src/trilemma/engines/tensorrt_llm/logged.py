"""The command of a start that a TensorRT-LLM log tells: none, its server prints neither model nor arguments."""

from __future__ import annotations

from typing import NoReturn

from trilemma.engines.start_log import StartUpLog
from trilemma.errors import InputError, shorten


def command_of(log: StartUpLog) -> NoReturn:
    """Raises `InputError`."""
    raise InputError(f"--log {shorten(log.path)} names no model; put the command that was run behind --")
