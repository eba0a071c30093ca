"""The memory total that an engine sees, where the runtime's own figure is known and where it must be inferred."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.errors import PlanWarning
from trilemma.hardware.accelerator import Accelerator, Figure
from trilemma.intervals import Interval
from trilemma.quantities import GIB

_FILE = Path(__file__).parent.parent / "data" / "fabrics" / "memory_totals.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeTotal:
    """Bytes of the runtime total with bounds; ``assumed`` where no log of this card shows it; ``why`` says how it came."""

    interval: Interval
    assumed: bool
    why: str


@cache
def _rules() -> dict[str, Any]:
    from trilemma.hardware.reader import parse_toml, read_text

    return parse_toml(read_text(_FILE), where=_FILE.name)


def runtime_total(accelerator: Accelerator) -> RuntimeTotal:
    """What cudaMemGetInfo or hipMemGetInfo reports for ``accelerator``, in bytes.

    Known: the figure, bounded by what other logs of the same card show (a figure taken over from a sister card is
    ``assumed``). Else from the driver's total less a gap, or from
    the label, by the rules of ``data/fabrics/memory_totals.toml`` (fitted on the cards where both are known).
    """
    rules = _rules()
    known = accelerator.runtime_total_bytes
    if known is not None:
        return _known(known, accelerator, rules)
    if accelerator.nvml_total_bytes is not None:
        total = accelerator.nvml_total_bytes.value
        return _below_driver_total(Interval.exact(total), accelerator, "the driver's total")
    label = accelerator.label_gb * GIB
    kind = _label_kind(accelerator)
    share = _working_set(accelerator.label_gb, rules["working_set"]) if kind == "working_set" else rules["label"][kind]
    driver = Interval(value=label * share["value"], low=label * share["low"], high=label * share["high"])
    if kind in ("unified", "working_set"):
        return RuntimeTotal(interval=driver, assumed=True, why=f"assumed from the label: {share['source']}")
    return _below_driver_total(driver, accelerator, f"the label ({share['source']})")


def memory_warnings(accelerator: Accelerator) -> tuple[PlanWarning, ...]:
    """The warning ``memory-total-assumed`` where the runtime total of this card is inferred."""
    total = runtime_total(accelerator)
    if not total.assumed:
        return ()
    interval = total.interval
    text = (
        f"no log shows what the runtime reports on {accelerator.id}; {interval.value / GIB:.2f} GiB"
        f" ({interval.low / GIB:.2f} to {interval.high / GIB:.2f}) is {total.why}"
    )
    return (PlanWarning(code="memory-total-assumed", message=text),)


def driver_gap_bytes(total_bytes: float, accelerator: Accelerator) -> Interval:
    """How far the runtime total lies below a driver's total of ``total_bytes``: a base plus a share, by kind of card."""
    rule = _gap_rule(accelerator)
    middle = rule["base_bytes"] + rule["share"] * total_bytes
    return Interval(value=middle, low=middle * rule["low_factor"], high=middle * rule["high_factor"])


def host_share_bytes(total_bytes: float, accelerator: Accelerator) -> float:
    """What the system holds of ``total_bytes`` that it shares with the card before an engine starts; 0 where nobody told."""
    rule = _rules()["host_share"].get(accelerator.vendor.lower()) if accelerator.unified_memory else None
    return 0.0 if rule is None else float(rule["share"]) * total_bytes


def _gap_rule(accelerator: Accelerator) -> dict[str, Any]:
    rules = _rules()["driver_gap"]
    kind = "unified" if accelerator.unified_memory else accelerator.vendor.lower()
    return dict(rules.get(kind, rules["otherwise"]))


def _known(known: Figure, accelerator: Accelerator, rules: dict[str, Any]) -> RuntimeTotal:
    spread = rules["known_spread"]["recalled" if known.recalled else "measured"]
    low, high = min(known.claims) * (1 - spread), max(known.claims) * (1 + spread)
    if accelerator.nvml_total_bytes is not None:
        high = max(known.value, min(high, max(accelerator.nvml_total_bytes.claims)))
    why = f"taken from {known.source}" if known.recalled else f"measured: {known.source}"
    return RuntimeTotal(interval=Interval(value=known.value, low=low, high=high), assumed=known.recalled, why=why)


def _label_kind(accelerator: Accelerator) -> str:
    if accelerator.unified_memory:
        return "working_set" if accelerator.vendor in _rules()["working_set"]["vendors"] else "unified"
    if accelerator.inline_ecc:
        return "inline_ecc"
    return "graphics" if accelerator.memory_type.upper().startswith("GDDR") else "stacked"


def _working_set(label_gb: float, rule: dict[str, Any]) -> dict[str, Any]:
    """The share of unified memory of ``label_gb`` that the system offers to its GPU, between the sizes that logs show."""
    sizes, shares = (np.asarray(column, dtype=float) for column in zip(*rule["shares"], strict=True))
    value = float(np.interp(np.log2(label_gb), np.log2(sizes), shares))
    older = next(share for least, share in rule["older"] if label_gb >= least)
    return {"value": value, "low": min(older, value), "high": max(rule["most"], value), "source": rule["source"]}


def _below_driver_total(driver: Interval, accelerator: Accelerator, of: str) -> RuntimeTotal:
    gap = driver_gap_bytes(driver.value, accelerator)
    interval = Interval(value=driver.value - gap.value, low=driver.low - gap.high, high=driver.high - gap.low)
    source = _gap_rule(accelerator)["source"]
    return RuntimeTotal(
        interval=interval, assumed=True, why=f"inferred from {of} less {gap.value / GIB:.2f} GiB ({source})"
    )
