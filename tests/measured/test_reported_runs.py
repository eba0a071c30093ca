"""Whole commands of public reports, each of which ran or did not: what is said with 95 % or more holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sureness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sureness", ROOT / "studies" / "sureness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sureness"] = module
    spec.loader.exec_module(module)
    return module


def test_verdicts_on_reported_runs_hold_as_surely_as_they_are_said(sureness: ModuleType) -> None:
    said = sureness.of_reports(str(ROOT / "tests" / "data" / "reported_runs.jsonl"))
    assert len(said) >= 110
    assert [name for name, (sure, held) in said if sure >= 0.95 and not held] == []
    surely = [held for _, (sure, held) in said if 0.7 <= sure < 0.95]
    assert sum(surely) >= 0.8 * len(surely)


def test_peaks_that_reports_state_lie_where_they_are_told(sureness: ModuleType) -> None:
    """GiB as PyTorch allocated or reserved, or of the whole card, against the range told. Most of the others are texts of many
    lengths, for which an allocator reserves up to twice as much, and kernels of 2023 for weights in 4 bits."""
    told = sureness.peaks_of_reports(str(ROOT / "tests" / "data" / "reported_runs.jsonl"))
    assert len(told) >= 55
    held = [low <= measured <= high or abs(value / measured - 1) <= 0.15 for _, value, low, high, measured in told]
    assert sum(held) >= 0.7 * len(held)
