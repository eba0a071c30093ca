"""A flag's slips of the hand are told from other flags."""

from __future__ import annotations

import pytest

from trilemma import engines
from trilemma.commands.flags import edits
from trilemma.engines.vllm.flags import table


@pytest.mark.parametrize(
    ("one", "other", "number"),
    [
        ("", "", 0),
        ("abc", "abc", 0),
        ("abc", "abd", 1),
        ("abc", "acb", 1),
        ("abc", "", 3),
        ("sise", "size", 1),
        ("ab", "bca", 3),
    ],
)
def test_edits(one: str, other: str, number: int) -> None:
    assert edits(one, other) == edits(other, one) == number


def test_slips_of_long_flags_are_found_and_short_ones_are_left() -> None:
    assert table().meant_by("--tensor-paralel-size") == "tensor-parallel-size"
    assert table().meant_by("--gpu_memory_utilisation") == "gpu-memory-utilization"
    assert table().meant_by("--tq") is None
    assert table().meant_by("--something-else-altogether") is None


@pytest.mark.slow
def test_a_flag_that_came_later_is_no_slip_of_an_older_one() -> None:
    """Flags of vLLM that were new in a release, against those that the releases before had: near names are rare."""
    flags = table().flags
    newest = table().versions[-4:]
    new = [name for name in flags if flags[name].since in newest]
    older = [name for name in flags if flags[name].since not in newest]
    near = [name for name in new if any(edits(name, known) <= 2 for known in older)]
    assert len(new) > 40
    assert len(near) <= len(new) / 20


def test_engines_of_all_flag_lists_refuse_slips() -> None:
    command = engines.get("vllm").read(["vllm", "serve", "m", "--max-num-sesq", "4"])
    assert [warning.code for warning in command.warnings] == ["refused-flag"]
