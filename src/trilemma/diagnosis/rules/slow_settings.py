"""Settings of a run's command that leave speed behind (data/diagnosis/slow_settings.toml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.launch_command import KIND as COMMAND
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        words, said = _words(case, file)
        for row in _rows():
            if words and _holds(row, words):
                line = next((one.line for one in part.events if one.name == "step"), None)
                speed = part.facts.get("median_tflops_per_gpu")
                yield Finding(
                    id=f"speed.{row['id']}", role="root", severity="warning", claim=row["claim"],
                    evidence=(Evidence(file=file, line=line, value=said),),
                    observed=None if speed is None else f"{speed:.4g} TFLOP/s a GPU", confidence="supported",
                    fix=f"{row['fix']} ({row['source']})", predicted_effect=row["effect"],
                )  # fmt: skip


def _words(case: Case, file: str) -> tuple[Sequence[str], str]:
    """The command of a file's run: the one given, else the one that its log holds."""
    expectation = case.expectations.get(file)
    if expectation is not None and expectation.command:
        return expectation.command, expectation.said
    for name, part in case.parts(COMMAND):
        if name == file and part.whole:
            return part.whole, f"the command that {file} holds"
    return (), ""


def _holds(row: Mapping[str, Any], words: Sequence[str]) -> bool:
    return (
        any(word.rpartition("/")[2] == row["program"] for word in words)
        and all(_given(flag, words) for flag in row["with"])
        and not any(_given(flag, words) for flag in row["without"])
    )


def _given(flag: str, words: Sequence[str]) -> bool:
    name, sign, value = flag.partition("=")
    for at, word in enumerate(words):
        own, own_sign, own_value = word.partition("=")
        if own == name:
            after = own_value if own_sign else words[at + 1] if at + 1 < len(words) else ""
            return not sign or after == value
    return False


@cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_data("diagnosis/slow_settings.toml")["setting"])


RULE = Rule(needs=(KIND,), judge=_judge)
