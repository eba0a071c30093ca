"""From what a plan states to the words of a command line: the walk that every engine's writer takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trilemma.commands.flag_words import words_of
from trilemma.commands.flags import Flag, FlagTable
from trilemma.engines import canonical
from trilemma.engines.in_force import refused_value
from trilemma.errors import InputError, shorten
from trilemma.models.remote_code import needs_remote_code
from trilemma.plans import Plan, Pool
from trilemma.versions import Version, version_text


def served_pool(plan: Plan, *, engine: str, shown: str) -> Pool:
    """The one pool of ``plan``. Raises `InputError` for a plan of another engine or of a training."""
    if canonical(plan.engine.name) != engine:
        raise InputError(f"the plan is for {shorten(plan.engine.name)}; {shown} runs plans whose engine is {engine}")
    if plan.pool.role == "train":
        raise InputError(f"{shown} serves models and cannot run a training plan")
    return plan.pool


def single(value: Any, name: str) -> int:
    """``value`` of one plan. Raises `InputError` for a table of plans."""
    if isinstance(value, np.ndarray) and value.ndim:
        raise InputError(f"{name} holds one value per plan; write takes one plan")
    return int(value)


def stated(value: Any, name: str) -> int | None:
    """`single` of an option that may be left open."""
    return None if value is None else single(value, name)


def degrees(plan: Plan) -> dict[str, int]:
    """Ranks of each kind in the plan's layout."""
    return {name: single(getattr(plan.pool.layout, name), name) for name in ("tp", "pp", "dp", "ep", "cp", "dcp")}


def trusted(model: str, known: FlagTable) -> list[tuple[Flag, Any]]:
    """The flag by which the engine may run the code of the model's repository, where it brings some."""
    return [(known.flags["trust-remote-code"], True)] if needs_remote_code(model) else []


def settings_of(pairs: Mapping[str, Any], known: FlagTable, version: str | None) -> list[tuple[Flag, Any]]:
    """Flags of ``version`` by name with their values, those of None left out.

    Raises `InputError` for a name that is no flag, for a flag that the version does not have, and for a value that it does not
    take.
    """
    at = known.at(version)
    found = []
    for name, value in pairs.items():
        if value is None:
            continue
        flag = known.flags.get(name)
        if flag is None:
            raise no_flag(known, name)
        if not flag.exists_at(at):
            before = "" if flag.removed is None else f" and before {_text(flag.removed, known)}"
            raise InputError(
                f"{known.engine} {_text(at, known)} has no --{name}; take a version from {_text(flag.since, known)}{before}"
                " or drop the option"
            )
        check_value(flag, value, known, version)
        found.append((flag, value))
    return found


def check_value(flag: Flag, value: Any, known: FlagTable, version: str | None) -> None:
    """Raise `InputError` where ``version`` does not take ``value``; of releases newer than those read nothing is known."""
    at = known.at(version)
    refused = None if known.values.is_newer(at) else refused_value(flag, value, known, at)
    if refused is not None:
        raise InputError(f"{known.engine} {_text(at, known)} {refused}")


def no_flag(known: FlagTable, name: str) -> InputError:
    """The refusal of an option that no flag says."""
    return InputError(
        f"{known.engine} has no flag --{shorten(name)}; remove {shorten(name)!r} from the plan's extra options"
    )


def words(settings: Iterable[tuple[Flag, Any]]) -> list[str]:
    """The words that set the flags. Raises `InputError` for characters that no command line takes."""
    found = [word for flag, value in settings for word in words_of(flag, value)]
    for word in found:
        if any(ord(char) < 32 for char in word):
            raise InputError(f"{shorten(word)!r} holds control characters, which no command line takes")
    return found


def _text(version: Version, known: FlagTable) -> str:
    return version_text(version, engine=known.engine)
