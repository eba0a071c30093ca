"""Files in, findings out: every file is read, then every rule is asked that finds its evidence among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from trilemma.columns import column
from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Finding, Missing, Reading, in_order
from trilemma.diagnosis.readers import every_reader
from trilemma.diagnosis.reading import read
from trilemma.diagnosis.rules import rules
from trilemma.diagnosis.sources import files_of

#: Findings by whose roots others are explained, and those others.
_CAUSES = ("gpu.", "hang.missing-ranks", "hang.mismatched-collective")
_CONSEQUENCES = frozenset(("hang.timeout", "hang.unfinished-collective"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Findings, the gravest first, beside what was read; ``missing`` names evidence that would have said more."""

    COLUMNS: ClassVar = {
        "schema": {}, "findings": column(keep="empty"), "missing": column("missing_inputs", keep="empty"),
        "files": column(keep="empty"),
    }  # fmt: skip

    schema: Literal["trilemma/findings@1"] = "trilemma/findings@1"
    findings: tuple[Finding, ...]
    files: tuple[Reading, ...]
    missing: tuple[str, ...]
    named: frozenset[str]

    @property
    def healthy(self) -> bool:
        """No finding above context."""
        return all(finding.severity == "context" for finding in self.findings)

    @property
    def unreadable(self) -> tuple[Reading, ...]:
        return tuple(reading for reading in self.files if reading.unreadable)

    @property
    def exit_code(self) -> int:
        """1 with findings above context; else 2 where a named file, or every file, is unreadable; else 0."""
        if not self.healthy:
            return 1
        hopeless = [reading for reading in self.unreadable if reading.file in self.named]
        return 2 if hopeless or len(self.unreadable) == len(self.files) else 0


#: Expectations by file, and what was missing to make one.
Expect = Callable[[Case], tuple[Mapping[str, Expectation], Sequence[str]]]


def judge(
    paths: Sequence[str | Path], *, expect: Expect | None = None, network_bytes_per_s: float | None = None
) -> Diagnosis:
    """Reads files and folders (``-`` is standard input), each by its content, and judges them together.

    ``expect`` says what the estimator expects of the runs that the files are of, ``network_bytes_per_s`` what is known of the
    network of a node.
    """
    files = files_of(paths)
    named = frozenset(map(str, paths)) & frozenset(files)
    readings = tuple(map(read, files))
    return judge_readings(readings, named=named, expect=expect, network_bytes_per_s=network_bytes_per_s)


def judge_readings(
    readings: Sequence[Reading],
    *,
    named: frozenset[str] = frozenset(),
    expect: Expect | None = None,
    network_bytes_per_s: float | None = None,
) -> Diagnosis:
    """What was read, judged together; ``named``: those of which it matters that they could be read."""
    case = _together(Case(readings=tuple(readings), network_bytes_per_s=network_bytes_per_s))
    findings: list[Finding] = []
    missing: dict[str, None] = {}
    if expect is not None:
        expectations, lacking = expect(case)
        case = replace(case, expectations=expectations)
        missing |= dict.fromkeys(lacking)
    for rule in rules():
        if any(case.has(kind) for kind in rule.needs):
            for said in rule.judge(case):
                if isinstance(said, Missing):
                    missing[said.what] = None
                else:
                    findings.append(said)
    findings = _with_cascades(findings)
    return Diagnosis(findings=in_order(findings), files=case.readings, missing=tuple(missing), named=named)


def _with_cascades(findings: list[Finding]) -> list[Finding]:
    """A timeout follows from a GPU that failed, or from a rank that is known to have stayed away."""
    if not any(one.role == "root" and one.severity == "error" and one.id.startswith(_CAUSES) for one in findings):
        return findings
    return [replace(one, role="cascade") if one.id in _CONSEQUENCES else one for one in findings]


def _together(case: Case) -> Case:
    """The case with the facts that files say only side by side."""
    for reader in every_reader():
        if reader.together is not None and case.has(reader.kind):
            told = reader.together(case)
            told_each = (replace(one, facts={**one.facts, **told.get(one.file, {})}) for one in case.readings)
            case = replace(case, readings=tuple(told_each))
    return case
