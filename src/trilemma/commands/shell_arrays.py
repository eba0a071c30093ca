"""Arrays of shell scripts, in which training scripts keep their flags: ``ARGS=(--a 1 --b)`` and ``${ARGS[@]}``."""

from __future__ import annotations

import re
import shlex

from trilemma.commands.shell_words import MOST_CHARACTERS, split_commands
from trilemma.errors import InputError

_DEFINITION = re.compile(r"(?m)^[ \t]*(?:declare -a |local |export )?([A-Za-z_]\w{0,127})(\+?)=\(")
_USE = re.compile(r"\"?\$\{([A-Za-z_]\w{0,127})\[[@*]\]\}\"?")
_MOST_ARRAYS = 256


def expand_arrays(text: str) -> str:
    """``text`` with every array's words in the place of its uses and the definitions gone; other text as it is.

    Nothing is run: words are taken as written. Raises `InputError` where a script holds more arrays than any real one or
    grows beyond the bounds of a command.
    """
    if "=(" not in text or ("[@]" not in text and "[*]" not in text):
        return text
    arrays: dict[str, str] = {}
    kept: list[str] = []
    at = 0
    while match := _DEFINITION.search(text, at):
        end = _closing(text, match.end())
        if end is None:
            break
        if len(arrays) > _MOST_ARRAYS:
            raise InputError(
                f"a script with more than {_MOST_ARRAYS} arrays is too long; give the training command itself"
            )
        name, more = match.group(1), match.group(2)
        body = _used(_one_line(text[match.end() : end]), arrays)
        arrays[name] = f"{arrays[name]} {body}" if more and name in arrays else body
        kept.append(text[at : match.start()])
        at = end + 1
    return _used("".join([*kept, text[at:]]), arrays)


def _used(text: str, arrays: dict[str, str]) -> str:
    grown = _USE.sub(lambda match: arrays.get(match.group(1), match.group()), text)
    if len(grown) > MOST_CHARACTERS:
        raise InputError("the script's arrays make a command that is too long; give the training command itself")
    return grown


def _closing(text: str, start: int) -> int | None:
    """Where the parenthesis opened before ``start`` closes, quotes and comments passed over; None where it does not."""
    quote = ""
    at = start
    while at < len(text):
        char = text[at]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and text[at - 1].isspace():
            at = text.find("\n", at)
            if at < 0:
                return None
        elif char == ")":
            return at
        at += 1
    return None


def _one_line(body: str) -> str:
    """The words of an array on one line, variables left for the shell's own substitution."""
    words = [word for command in split_commands(body) for word in command]
    return " ".join(word if "$" in word else shlex.quote(word) for word in words)
