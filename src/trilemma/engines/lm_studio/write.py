"""A plan written as the ``lms load`` command that loads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from trilemma.engines.launch import check_model_word
from trilemma.engines.lm_studio.flags import table
from trilemma.engines.writing import degrees, served_pool, settings_of, stated, words
from trilemma.errors import InputError
from trilemma.plans import Plan


def write(*, model: str, plan: Plan) -> list[str]:
    """``["lms", "load", model, flag, value, …]`` for a plan of cards in turn. Raises `InputError`."""
    options, ranks = served_pool(plan, engine="lm-studio", shown="lms load").options, degrees(plan)
    if max(number for name, number in ranks.items() if name != "pp") > 1:
        raise InputError("LM Studio puts layers on cards in turn (--pp) and splits nothing else")
    if options.kv_dtype not in (None, "auto", "f16", "fp16"):
        raise InputError("lms load has no flag for the cache's type; set it in the application's load settings")
    if options.max_batched_tokens is not None:
        raise InputError(
            "lms load has no flag for the tokens of a step; set the evaluation batch size in the application's load settings"
        )
    pairs: dict[str, Any] = {"context-length": options.context, "parallel": stated(options.max_seqs, "max_seqs")}
    settings = settings_of({**pairs, **options.extra}, table(), plan.engine.version)
    return ["lms", "load", _key(check_model_word(model)), *words(settings)]


def around(model: str, words: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:  # noqa: ARG001 - one signature
    """Commands before and after ``words`` of `write` on one line: a file is taken into its library first."""
    if not _is_file(model):
        return [], []
    return [
        ["lms", "import", model, "--yes", "--symbolic-link", "--user-repo", f"local/{PurePosixPath(model).stem}"]
    ], []


def _key(model: str) -> str:
    """The key of a model's variant as LM Studio spells it, ``NAME@MIX``; a file by its name, as its library finds it (lms
    src/subcommands/load.ts: any part of a path)."""
    return PurePosixPath(model).name if _is_file(model) else re.sub(r":([\w.]+)$", r"@\1", model)


def _is_file(model: str) -> bool:
    return model.lower().endswith(".gguf") and model.startswith((".", "/", "~"))
