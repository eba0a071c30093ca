"""A Modelfile read: the model that it is made from and the parameters that decide memory; nothing in it is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from trilemma.errors import InputError, shorten

_MOST_LINES, _MOST_WORD = 20_000, 4096
_QUOTES = '"""'
#: Values of parameters: numbers and words.
_VALUE = re.compile(r"[\w.+-]{1,64}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Modelfile:
    """``model`` of the last FROM, ``parameters`` by name (the last of each), how many adapters are laid over it.

    ``projector``: another FROM names the file that reads images (``mmproj``). ``says_more``: it holds instructions beside these,
    which are not kept.
    """

    model: str
    projector: bool = False
    parameters: dict[str, str] = field(default_factory=dict)
    adapters: int = 0
    says_more: bool = False


def parse(instructions: str, *, name: str) -> Modelfile:
    """What ``instructions`` say; ``name`` is the file for messages. Raises `InputError` where none names a model.

    Instructions are not case sensitive, texts between three quotes may run over lines (docs/modelfile.mdx).
    """
    model, parameters, adapters, more = "", {}, 0, False
    quoted = projector = False
    for number, line in enumerate(instructions.splitlines()):
        if number >= _MOST_LINES:
            raise InputError(f"{shorten(name)} has more than {_MOST_LINES:,} lines; give the Modelfile itself")
        opens = line.count(_QUOTES) % 2 == 1
        if quoted:
            quoted = not opens
            continue
        quoted = opens
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match word.upper():
            case "FROM" if "mmproj" in PurePath(rest).name.lower():
                projector = more = True
            case "FROM":
                model = rest
            case "ADAPTER":
                adapters, more = adapters + 1, True
            case "PARAMETER":
                key, _, value = rest.partition(" ")
                parameters[key.lower()] = value.strip().strip("\"'")
            case instruction:
                more = more or (bool(instruction) and not instruction.startswith("#"))
    if not model or len(model) > _MOST_WORD:
        raise InputError(f"{shorten(name)} names no model; write a line such as FROM llama3.1:8b")
    return Modelfile(
        model=_beside(model, name), projector=projector, parameters=parameters, adapters=adapters, says_more=more
    )


def text(*, model: str, parameters: Mapping[str, object]) -> str:
    """A Modelfile that makes ``model`` with ``parameters``, in the order given (docs/modelfile.mdx).

    Raises `InputError` for what would be an instruction of its own, or none: a value is one word.
    """
    if _QUOTES in model or model != model.strip() or not model.isprintable():
        raise InputError(
            f"{shorten(model)!r} cannot stand in a Modelfile; give a name of one line without three quotes in a row"
        )
    for name, value in parameters.items():
        if _VALUE.fullmatch(str(value)) is None:
            raise InputError(
                f"{name} {shorten(str(value))!r} cannot stand in a Modelfile; give a number or a word of letters and digits"
            )
    return "".join([f"FROM {model}\n", *(f"PARAMETER {name} {value}\n" for name, value in parameters.items())])


def said(parameters: Mapping[str, object]) -> str:
    """The parameters in one word, by which two files are compared."""
    return ",".join(f"{name}={parameters[name]}" for name in sorted(parameters))


def _beside(model: str, name: str) -> str:
    """A file that the Modelfile names lies beside it."""
    if not model.startswith(("./", "../")):
        return model
    return str(PurePath("".join(name)).parent / model)
