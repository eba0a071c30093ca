"""A Modelfile read: the model that it is made from and the parameters that decide memory; nothing in it is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from trilemma.errors import InputError, shorten

_MOST_LINES, _MOST_WORD = 20_000, 4096
_QUOTES = '"""'


@dataclass(frozen=True, kw_only=True, slots=True)
class Modelfile:
    """``model`` of the last FROM, ``parameters`` by name (the last of each), how many adapters are laid over it."""

    model: str
    parameters: dict[str, str] = field(default_factory=dict)
    adapters: int = 0


def parse(text: str, *, name: str) -> Modelfile:
    """The instructions of ``text``; ``name`` is the file for messages. Raises `InputError` where none names a model.

    Instructions are not case sensitive, texts between three quotes may run over lines (docs/modelfile.mdx).
    """
    model, parameters, adapters = "", {}, 0
    quoted = False
    for number, line in enumerate(text.splitlines()):
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
            case "FROM":
                model = rest
            case "ADAPTER":
                adapters += 1
            case "PARAMETER":
                key, _, value = rest.partition(" ")
                parameters[key.lower()] = value.strip().strip("\"'")
    if not model or len(model) > _MOST_WORD:
        raise InputError(f"{shorten(name)} names no model; write a line such as FROM llama3.1:8b")
    return Modelfile(model=_beside(model, name), parameters=parameters, adapters=adapters)


def _beside(model: str, name: str) -> str:
    """A file that the Modelfile names lies beside it."""
    if not model.startswith(("./", "../")):
        return model
    return str(PurePath(name).parent / model)
