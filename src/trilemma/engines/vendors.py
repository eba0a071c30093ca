"""Whose accelerators an engine runs on."""

from __future__ import annotations

from functools import cache
from typing import Any

from trilemma.data.plain_toml import read_data
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator


def check_vendor(engine: str, accelerator: Accelerator) -> None:
    """Raise `InputError` where ``engine`` ("training" for all frameworks) does not run on cards of this maker.

    An engine without an entry of its own keeps the rule with its other facts.
    """
    row = _document().get(engine)
    if row is not None and accelerator.vendor not in row["vendors"]:
        name = "no training framework read here" if engine == "training" else engine
        verb = "runs" if engine == "training" else "does not run"
        raise InputError(f"{name} {verb} on {accelerator.name}; use a card of {', '.join(row['vendors'])}")


@cache
def _document() -> dict[str, Any]:
    return read_data("engines/vendors.toml")
