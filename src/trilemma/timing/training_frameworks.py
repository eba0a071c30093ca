"""Training frameworks as timing sees them, and the software eras of their releases: ``data/training_frameworks.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.plans.training import TrainingPlan
from trilemma.versions import DEFAULT_FRAMEWORK

_FRAMEWORKS = "training_frameworks.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkTiming:
    """A training framework as timing sees it: its coefficients' ``name``, attention kernel and what it overlaps by default.

    ``attention_today``: what it chooses now, if fitted runs are older and no release is named; ``written_in_torch``: layers are
    plain PyTorch operators, one kernel each unless a compiler fuses them. ``dispatcher``: how it moves tokens to experts where a
    plan does not say ("": all-to-all).
    """

    name: str
    attention: str = "flash"
    attention_today: str = ""
    written_in_torch: bool = False
    overlap_tensor: bool = False
    overlap_data: bool = True
    dispatcher: str = ""
    implementation: str = DEFAULT_FRAMEWORK


@cache
def _framework_rows() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_data(_FRAMEWORKS)["framework"])


@cache
def frameworks() -> tuple[FrameworkTiming, ...]:
    rows = ({key: row[key] for key in row if key not in ("words", "eras")} for row in _framework_rows())
    return tuple(FrameworkTiming(**row) for row in rows)


def framework_of(plan: TrainingPlan) -> FrameworkTiming:
    """The framework that a plan's implementation and version mean; by default the newest of that implementation."""
    named = find_framework(plan.version or "") if plan.version else None
    if named is not None and named.implementation == plan.implementation:
        return named
    usual = [one for one in frameworks() if one.implementation == plan.implementation]
    return usual[0] if usual else FrameworkTiming(name=plan.implementation, implementation=plan.implementation)


def find_framework(text: str) -> FrameworkTiming | None:
    """The first framework one of whose words ``text`` holds; None for one that is not known."""
    lowered = text.lower()[:500]
    for row, framework in zip(_framework_rows(), frameworks(), strict=True):
        if any(word in lowered for word in row["words"]):
            return framework
    return None


def eras(framework: str) -> tuple[str, ...]:
    """Software eras of a framework, oldest first; a release belongs to the newest era that is not after it."""
    for row in _framework_rows():
        if row["name"] == framework:
            return tuple(row.get("eras", ()))
    return ()


def newest_era(framework: str) -> str:
    return (eras(framework) or ("",))[-1]


def era_of(framework: str, version: str) -> str:
    """The era that a release or date in ``version`` falls into: ``NeMo 26.02.01`` → ``26.02``; "" where none is stated."""
    match = re.search(r"\b(?:20)?(\d\d)[.-](\d\d)\b", version) or re.search(r"(\d\d)\.(\d\d)", version)
    if match is None:
        return ""
    stamp = f"{match.group(1)}.{match.group(2)}"
    known = [era for era in eras(framework) if era <= stamp]
    return known[-1] if known else (eras(framework) or ("",))[0]
