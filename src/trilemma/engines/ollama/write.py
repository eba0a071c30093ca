"""A plan to the command that runs it: the server's variables, then ``ollama run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trilemma.data.files import read_data
from trilemma.engines.launch import check_model_word
from trilemma.engines.llama_cpp.cards import cache_format
from trilemma.engines.ollama.flags import table
from trilemma.engines.ollama.tags import tag_of
from trilemma.engines.writing import degrees, no_flag, served_pool, stated
from trilemma.errors import InputError
from trilemma.plans import Plan, ServeOptions

#: Options that a Modelfile says and no variable does.
_OF_MODELFILE = ("n-gpu-layers", "main-gpu")


def write(*, model: str, plan: Plan) -> list[str]:
    """``["OLLAMA_CONTEXT_LENGTH=8192", …, "ollama", "run", model]`` for a plan of one pool of cards in turn.

    A plan that was read from a Modelfile is made from that file again.
    A repository of Hugging Face is named hf.co/ORG/NAME. Raises `InputError` for a plan that Ollama cannot run, and for
    options that only a Modelfile states.
    """
    options, ranks = served_pool(plan, engine="ollama", shown="ollama run").options, degrees(plan)
    if max(number for name, number in ranks.items() if name != "pp") > 1:
        raise InputError("Ollama puts layers on cards in turn (--pp) and splits nothing else")
    cache_format(options.kv_dtype, "the cache format")
    extra = dict(options.extra)
    file, made = extra.pop("file", None), extra.pop("create", None)
    if file is not None:  # what stands in the file is said there
        extra = {name: value for name, value in extra.items() if name not in _OF_MODELFILE}
        options = replace(options, context=None, max_batched_tokens=None)
    for name in _OF_MODELFILE:
        if extra.get(name) is not None:
            raise InputError(f"{name} stands in a Modelfile, not in a command; write PARAMETER lines, or leave it out")
    if options.max_batched_tokens is not None:
        raise InputError(
            "num_batch stands in a Modelfile, not in a command; write PARAMETER num_batch, or leave it out"
        )
    values = _values(options, extra)
    names = {option: name for name, option in read_data("engines/ollama.toml")["settings"]["variables"].items()}
    unknown = next((name for name, value in values.items() if name not in names and value is not None), None)
    if unknown is not None:
        raise no_flag(table(), unknown)
    before = [f"{names[name]}={value}" for name, value in values.items() if value is not None]
    if file is not None:
        return [*before, "ollama", "create", check_model_word(str(made)), "-f", str(file)]
    word = tag_of(check_model_word(model))
    if word.count("/") == 1 and not word.startswith((".", "/", "~", "hf.co")):
        word = f"hf.co/{word}"
    return [*before, "ollama", "run", word]


def _values(options: ServeOptions, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Option → value of the server's variables."""
    values: dict[str, Any] = {
        "context": options.context,
        "max_seqs": stated(options.max_seqs, "max_seqs"),
        "kv_dtype": options.kv_dtype,
        **extra,
    }
    if "flash-attn" in extra:
        values["flash-attn"] = "0" if extra["flash-attn"] in ("off", False) else "1"
    if options.kv_dtype is not None and "flash-attn" not in extra:
        values["flash-attn"] = "1"
    if "sched-spread" in extra:
        values["sched-spread"] = "1" if extra["sched-spread"] else "0"
    return values
