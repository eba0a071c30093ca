"""Counts that a script reckons: the shell's arithmetic in an engine's words."""

from __future__ import annotations

import pytest

from trilemma.engines.extract import extract


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("$((4 / 2))", "2"), ("$((7 % 4))", "3"), ("$(( 3*5 ))", "15"), ("$(expr 16 / 2)", "8"), ("$(expr 7 \\* 2)", "14"),
        ("$((4 / 0))", "$((4 / 0))"), ("$((4 % 0))", "$((4 % 0))"), ("$((4 * 0))", "0"), ("$((4 - 6))", "-2"),
    ],
)  # fmt: skip
def test_whole_numbers_are_reckoned_and_nothing_is_divided_by_zero(written: str, meant: str) -> None:
    _, words = extract([f"vllm serve m --seed {written} --port 1"])
    assert words[words.index("--seed") + 1] == meant
