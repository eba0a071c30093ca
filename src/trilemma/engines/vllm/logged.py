"""The command of a start that its log tells: the arguments that the server printed, else the engine's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.flag_words import words_of
from trilemma.engines.start_log import StartUpLog
from trilemma.engines.vllm.flags import table
from trilemma.errors import InputError, shorten

#: Names of the engine's configuration line that a flag calls otherwise.
_CONFIGURED = {"max_seq_len": "max-model-len"}
#: Arguments that name the model, and those that say nothing of the engine.
_MODEL = ("model", "model_tag", "served_model_name")


def command_of(log: StartUpLog) -> list[str]:
    """The words of the command, run in an image of the log's version. Raises `InputError` naming what the log does not state."""
    if log.model is None:
        raise InputError(f"--log {shorten(log.path)} names no model; put the command that was run behind --")
    stated: Mapping[str, Any] = log.arguments or {
        name: value for name, value in log.config.items() if value not in ("None", "auto")
    }
    if not stated:
        raise InputError(f"--log {shorten(log.path)} states no arguments; put the command that was run behind --")
    at = f":v{log.version}" if log.version else ""
    words = ["docker", "run", f"vllm/vllm-openai{at}", "--model", log.model]
    for name, value in stated.items():
        flag = table().flags.get(_CONFIGURED.get(name, name.replace("_", "-")))
        if (
            flag is None
            or name in _MODEL
            or value is None
            or flag.field.partition(".")[0] in ("server", "secret", "config")
        ):
            continue
        if isinstance(value, str) and not flag.takes_value:
            value = value == "True"
        words += words_of(flag, value)
    return words
