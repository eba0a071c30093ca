"""Experts that are loaded unevenly: every step waits for the rank with the most tokens.

What the engine prints as balancedness is the mean over the greatest load, so that its inverse bounds what rebalancing gives
(ROCm/ATOM pull request 1210: rearranged 1.167 times the requests a second, with 64 redundant experts 1.24 to 1.34).
"""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.expert_load import KIND
from trilemma.diagnosis.rules import Rule

#: Below this the busiest rank has a sixth more than the mean.
_EVEN = 0.86


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        balance = part.facts["median_balancedness"]
        if balance >= _EVEN or balance <= 0:
            continue
        first = part.events[0]
        yield Finding(
            id="speed.expert-imbalance", role="root", severity="warning",
            claim=f"experts are loaded unevenly: the mean rank has {balance:.0%} of the tokens of the busiest, for which every "
            "layer waits",
            evidence=(Evidence(file=file, line=first.line, value=first.values["text"]),),
            expected=f"at least {_EVEN:.0%}", observed=f"{balance:.0%}", confidence="supported",
            fix="rearrange experts by their load (--enable-eplb), with redundant experts where memory allows",
            predicted_effect=f"the time of experts falls by up to {1 / balance:.2f} times",
        )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
