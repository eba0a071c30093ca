"""A plan to the command that runs it: the server's variables, then ``ollama run``, or ``ollama create`` of a Modelfile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from trilemma.commands.named_files import HeldFile, held
from trilemma.data.files import read_data
from trilemma.engines.launch import check_model_word
from trilemma.engines.llama_cpp.cards import cache_format
from trilemma.engines.ollama import modelfile
from trilemma.engines.ollama.flags import table
from trilemma.engines.ollama.tags import is_file, tag_of
from trilemma.engines.writing import degrees, no_flag, served_pool, stated
from trilemma.errors import InputError
from trilemma.plans import Plan, ServeOptions

#: Options that a Modelfile says and no variable does.
_OF_MODELFILE = ("n-gpu-layers", "main-gpu", "max_batched_tokens")
FILE = "Modelfile"


def write(*, model: str, plan: Plan, always_made: bool = False) -> list[str]:
    """``["OLLAMA_CONTEXT_LENGTH=8192", …, "ollama", "run", model]`` for a plan of one pool of cards in turn.

    A file of weights, and options that only a Modelfile states, take ``ollama create NAME -f Modelfile``, whose last word holds
    the file's text (`trilemma.commands.named_files.HeldFile`); with ``always_made`` every plan does. A plan as a
    Modelfile said it is made from that file again. A repository of GGUF files is named hf.co/ORG/NAME, any other as the file
    that convert_hf_to_gguf.py makes of it.
    Raises `InputError` for a plan that Ollama cannot run.
    """
    options, ranks = served_pool(plan, engine="ollama", shown="ollama run").options, degrees(plan)
    if max(number for name, number in ranks.items() if name != "pp") > 1:
        raise InputError("Ollama puts layers on cards in turn (--pp) and splits nothing else")
    cache_format(options.kv_dtype, "the cache format")
    extra = dict(options.extra)
    file, made, stood = (extra.pop(name, None) for name in ("file", "create", "said"))
    values = _values(options, extra)
    parameters, rest = _parameters(values)
    if (
        file is not None and not always_made and stood in (None, modelfile.said(parameters))
    ):  # what stands in it is said there
        return [*_variables(rest), "ollama", "create", check_model_word(str(made)), "-f", str(file)]
    word = tag_of(check_model_word(model))
    if word.count("/") == 1 and not is_file(word) and not word.startswith("hf.co"):
        word = _of_hub(word)
    if made is None and not (
        always_made or is_file(word) or any(values.get(name) is not None for name in _OF_MODELFILE)
    ):
        return [*_variables(values), "ollama", "run", word]
    text = modelfile.text(model=word, parameters=parameters)
    return [
        *_variables(rest),
        "ollama",
        "create",
        check_model_word(str(made or made_name(word))),
        "-f",
        held(FILE, text),
    ]


def around(model: str, words: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:  # noqa: ARG001 - one signature
    """Commands before and after ``words`` of `write` on one line: what was made is run."""
    at = words.index("ollama")
    return [], [["ollama", "run", words[at + 2]]] if isinstance(words[-1], HeldFile) else []


def _of_hub(repository: str) -> str:
    """``ORG/NAME`` as Ollama takes it; with a tag and no word of GGUF it is of its own library (``USER/NAME:TAG``)."""
    if "gguf" in repository.lower():
        return f"hf.co/{repository}"
    return repository if ":" in repository else f"./{repository.partition('/')[2]}.gguf"


def made_name(word: str) -> str:
    """What a model made of ``word`` is called: letters, digits, dots, dashes and underscores (types/model/name.go)."""
    stem = word.removeprefix("hf.co/")
    stem = PurePosixPath(stem).stem if stem.lower().endswith(".gguf") else stem.strip("./~")
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:80] or "model"


def _parameters(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters of a Modelfile, options that variables say) of option → value."""
    names = {option: name for name, option in read_data("engines/ollama.toml")["settings"]["parameters"].items()}
    there = {names[name]: value for name, value in values.items() if name in names and value is not None}
    return there, {name: value for name, value in values.items() if name not in names}


def _variables(values: Mapping[str, Any]) -> list[str]:
    """``NAME=value`` of the server. Raises `InputError` for options that it has no variable for."""
    names = {option: name for name, option in read_data("engines/ollama.toml")["settings"]["variables"].items()}
    unknown = next((name for name, value in values.items() if name not in names and value is not None), None)
    if unknown is not None:
        raise no_flag(table(), unknown)
    return [f"{names[name]}={value}" for name, value in values.items() if value is not None]


def _values(options: ServeOptions, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Option → value as the server's variables and a Modelfile spell it."""
    values: dict[str, Any] = {
        "context": options.context,
        "max_seqs": stated(options.max_seqs, "max_seqs"),
        "max_batched_tokens": stated(options.max_batched_tokens, "max_batched_tokens"),
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
