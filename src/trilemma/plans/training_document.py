"""A training plan and its workload as plain data (JSON) and back; reading is strict, for documents come from outside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.plans.companions import Companion
from trilemma.plans.plan import Layout
from trilemma.plans.training import Offload, Optimizer, Recompute, TrainingPlan, TrainingRecipe
from trilemma.workloads import TrainingWorkload

#: Keys beside the plan's own that a document may carry for its reader; they are derived and not read back.
DERIVED = ("summary",)

_PARTS: dict[str, type[Any]] = {
    "layout": Layout, "recipe": TrainingRecipe, "optimizer": Optimizer, "recompute": Recompute, "offload": Offload,
}  # fmt: skip
_MOST_TEXT = 4096
_MOST_ENTRIES = 4096
_Made = TypeVar("_Made")


def training_plan_to_document(plan: TrainingPlan) -> dict[str, Any]:
    """Every field of ``plan`` that is set, parts as objects, tuples as lists; a table of plans gives lists of numbers.

    A field that is None is absent, or null where None is not its default; so are companions where there are none.
    """
    found = _fields(plan)
    return found if plan.companions else {key: value for key, value in found.items() if key != "companions"}


def training_plan_from_document(document: Any) -> TrainingPlan:
    """The plan of `training_plan_to_document`. Raises `InputError` naming the key that is unknown or of a wrong kind."""
    given = _object(document, "plan", TrainingPlan, DERIVED)
    parts = {
        name: _made(kind, given.pop(name), f"plan.{name}")
        for name, kind in _PARTS.items()
        if given.get(name) is not None
    }
    companions = given.pop("companions", [])
    if not isinstance(companions, list) or len(companions) > _MOST_ENTRIES:
        raise _wrong(companions, "plan.companions", "a list")
    beside = tuple(_made(Companion, one, f"plan.companions[{at}]") for at, one in enumerate(companions))
    return TrainingPlan(**parts, companions=beside, **_values(TrainingPlan, given, "plan"))


def training_workload_to_document(workload: TrainingWorkload) -> dict[str, Any]:
    """Every field of ``workload`` that is set."""
    return _fields(workload)


def training_workload_from_document(document: Any) -> TrainingWorkload:
    """The workload of `training_workload_to_document`. Raises `InputError`."""
    return _made(TrainingWorkload, document, "workload")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return _fields(value) if is_dataclass(value) else value


def _fields(value: Any) -> dict[str, Any]:
    return {
        one.name: _plain(getattr(value, one.name))
        for one in fields(value)
        if getattr(value, one.name) is not None or one.default is not None
    }


def _made(kind: type[_Made], document: Any, where: str) -> _Made:
    return kind(**_values(kind, _object(document, where, kind), where))


def _object(document: Any, where: str, kind: type[Any], derived: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise InputError(f"{where} is not an object")
    known = [one.name for one in fields(kind)]
    unknown = [str(key) for key in document if key not in known and key not in derived]
    if unknown:
        raise InputError(f"{where} has the unknown key {shorten(unknown[0])!r}; known: {', '.join(known)}")
    needed = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]
    missing = [name for name in needed if document.get(name) is None]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}")
    return {str(key): value for key, value in document.items() if key not in derived}


def _values(kind: type[Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {
        key: None if value is None and "None" in str(hints[key]) else _value(value, hints[key], f"{where}.{key}")
        for key, value in given.items()
    }


def _value(value: Any, hint: Any, where: str) -> Any:
    """``value`` as the field's type says: flag, number, text, or a list of one of them."""
    text = str(hint)
    if text.startswith("tuple"):
        if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
            raise _wrong(value, where, "a list")
        return tuple(_text(one, where) if text.startswith("tuple[str") else _whole(one, where) for one in value)
    if text.startswith(("bool", "<class 'bool'>")):
        if not isinstance(value, bool):
            raise _wrong(value, where, "true or false")
        return value
    if "ndarray" in text or hint is int or text.startswith("int"):
        if isinstance(value, list) and "ndarray" in text and 1 <= len(value) <= 2**20:
            return np.array([_whole(one, where) for one in value], dtype=np.int64)
        return _whole(value, where)
    if hint is float or text.startswith("float"):
        return _number(value, where)
    return _text(value, where)


def _wrong(value: Any, where: str, wanted: str) -> InputError:
    return InputError(f"{where} {shorten(repr(value)[:400])} is not {wanted}")


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**62:
        raise _wrong(value, where, "a whole number")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _wrong(value, where, "a number")
    return float(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise _wrong(value, where, "a text")
    return value
