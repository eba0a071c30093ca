"""Are the options that a plan carries for its engine of the kinds that their flags take: asked when a document is read.

A plan edited by hand may hold anything; writers take apart what these rules let pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.flags import FlagTable
from trilemma.engines import get, readable
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan

#: What a flag's kind takes in a document, and how that is said.
_NUMBERS = ("int", "count", "count_or_auto", "float")
_LISTS = ("list", "ints", "repeat")


def check_options(plan: Plan) -> None:
    """Raises `InputError` naming the option of ``plan`` whose value is of a kind that its flag does not take."""
    if plan.engine.name not in readable():
        return
    known = get(plan.engine.name).flags()
    for pool in plan.pools:
        for name, value in pool.options.extra.items():
            if value is not None:
                _check(name, value, known)


def _check(name: str, value: Any, known: FlagTable) -> None:
    flag = known.flags.get(name)
    if not name or not name.isprintable() or len(name) > 128:
        raise InputError(f"the plan's extra options name {shorten(repr(name))}, which is no option")
    if flag is None:
        # Keys of a configuration file; those of this ending hold others.
        wrong = name.endswith("_config") and not isinstance(value, Mapping)
        wanted = "an object"
    elif flag.kind == "json":
        wrong, wanted = not isinstance(value, Mapping), "an object"
    elif flag.kind in ("switch", "toggle"):
        wrong, wanted = not isinstance(value, bool), "true or false"
    elif flag.kind in _NUMBERS:
        wrong, wanted = isinstance(value, bool) or not isinstance(value, (int, float, str)) or value == "", "a number"
    elif flag.kind in _LISTS:
        listed = isinstance(value, list) and bool(value) and all(_plain(one) for one in value)
        wrong, wanted = not listed and not (flag.kind != "repeat" and _plain(value)), "a list of values"
    else:
        wrong, wanted = not _plain(value) and not (value is True and flag.kind == "optional_text"), "one value"
    if wrong:
        raise InputError(f"{name} {shorten(repr(value)[:400])} in the plan's extra options is not {wanted}")


def _plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""
