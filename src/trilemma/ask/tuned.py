"""What to try next: plans of the search that no run of the ledger tried, and what they would gain over the best run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trilemma.errors import InputError
from trilemma.runs.run import LedgerRun

_FIGURE = "tokens_per_s_per_gpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class NextTry:
    """One plan: what the search says of it, that times what runs reached of what was said of them, and the gain over the best."""

    plan: str
    predicted: float
    expected: float
    gain: float
    low_gain: float
    high_gain: float
    estimate: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """``reached`` is the median of measured over estimated of the ``runs`` that keep their estimate; ``best`` the best run."""

    model: str
    runs: int
    reached: float
    best: LedgerRun
    tries: tuple[NextTry, ...]
    tried: int


def tuned(model: str, plans: Sequence[Any], runs: Sequence[LedgerRun], *, most: int = 5) -> Tuning:
    """``plans`` (answers) of a search for the training that ``runs`` of the ledger are of, those not tried first in gain.

    Raises `InputError` where no run that is done tells tokens a second.
    """
    done = [run for run in runs if run.status == "done" and _FIGURE in run.figures]
    if not done:
        raise InputError(f"no run of {model} in the ledger tells {_FIGURE}; record one (trilemma runs record)")
    best = max(done, key=lambda run: run.figures[_FIGURE])
    ratios = [run.figures[_FIGURE] / said for run in done if (said := _said(run.estimate)) is not None]
    reached = median(ratios) if ratios else 1.0
    known = {_key(run.estimate) for run in done if run.estimate}
    tries = []
    tried = 0
    for answer in plans:
        document = answer.to_dict()
        said = _said(document)
        if said is None:
            continue
        if _key(document) in known:
            tried += 1
            continue
        interval, top = document["speed"][_FIGURE], best.figures[_FIGURE]
        tries.append(
            NextTry(
                plan=_words(document), predicted=said, expected=said * reached, gain=said * reached / top - 1,
                low_gain=interval["low"] * reached / top - 1, high_gain=interval["high"] * reached / top - 1, estimate=answer,
            )
        )  # fmt: skip
    tries.sort(key=lambda one: -one.gain)
    return Tuning(model=model, runs=len(done), reached=reached, best=best, tries=tuple(tries[:most]), tried=tried)


def _said(document: Mapping[str, Any]) -> float | None:
    try:
        value = float(document["speed"][_FIGURE]["value"])
    except (KeyError, TypeError, ValueError):
        return None
    return value if value > 0 else None


def _plan(document: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs = document.get("inputs")
    found = inputs.get("plan") if isinstance(inputs, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _key(document: Mapping[str, Any]) -> str:
    """What makes two plans one: everything that the plan states."""
    return repr(sorted((name, repr(value)) for name, value in _plan(document).items()))


def _words(document: Mapping[str, Any]) -> str:
    """The plan in a few words: its layout and what departs from the plainest."""
    plan = _plan(document)
    layout = plan.get("layout", plan)
    degrees = [f"{name}{layout[name]}" for name in ("tp", "pp", "dp", "ep", "cp") if layout.get(name, 1) != 1]
    rest = [f"{name.replace('_', ' ')} {plan[name]}" for name in ("micro_batch", "zero") if name in plan]
    recompute = plan.get("recompute")
    mode = recompute.get("mode") if isinstance(recompute, Mapping) else recompute
    return ", ".join([" ".join(degrees) or "one GPU", *rest, *([f"recompute {mode}"] if mode else [])])
