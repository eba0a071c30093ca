"""The command of a start that a llama.cpp log tells: the file that it loaded and the context that it was given."""

from __future__ import annotations

from trilemma.engines.start_log import StartUpLog
from trilemma.errors import InputError, shorten

_FLAGS = (("kv_cache_tokens", "-c"), ("max_seqs", "-np"), ("batch_tokens", "-ub"), ("layers_on_gpu", "-ngl"))


def command_of(log: StartUpLog) -> list[str]:
    """The words of the command. Raises `InputError` naming what the log does not state."""
    if log.model is None:
        raise InputError(f"--log {shorten(log.path)} names no model; put the command that was run behind --")
    words = ["llama-server", "-m", log.model]
    for name, flag in _FLAGS:
        if name in log.measured:
            words += [flag, str(int(log.measured[name].value))]
    return words
