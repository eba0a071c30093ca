"""What a diagnosis is made of: records read from files, the facts in them, and findings with their evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trilemma.columns import column

if TYPE_CHECKING:
    from trilemma.diagnosis.expectation import Expectation

Role = Literal["root", "symptom", "cascade", "context"]
Severity = Literal["error", "warning", "context"]
Confidence = Literal["established", "supported", "hypothesis"]

_SEVERITIES = ("error", "warning", "context")
_ROLES = ("root", "symptom", "cascade", "context")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A place and what stands there; ``line`` is None where the file has no lines (a trace, a dump)."""

    file: str
    line: int | None = field(default=None, metadata=column(keep="none"))
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong, or that explains another (role, severity "context").

    ``expected`` and ``observed`` are the two figures side by side, with units; ``predicted_effect`` what the fix gives.
    """

    id: str
    role: Role
    severity: Severity
    claim: str
    evidence: tuple[Evidence, ...] = field(metadata=column(keep="empty"))
    confidence: Confidence
    expected: str | None = field(default=None, metadata=column(keep="none"))
    observed: str | None = field(default=None, metadata=column(keep="none"))
    fix: str | None = field(default=None, metadata=column(keep="none"))
    predicted_effect: str | None = field(default=None, metadata=column(keep="none"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Evidence that a rule would have needed, and what for."""

    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, as a record of a file says: ``values`` by name, units in the names."""

    name: str
    line: int | None
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one reader found in one file: ``weight`` is the number of records that are of its kind.

    ``whole`` is what the reader made of all of them, for those who ask for more than facts.
    """

    kind: str
    weight: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    whole: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One file read: its kind is that of the heaviest part. ``why`` says what hindered the reading, where anything did."""

    COLUMNS: ClassVar = {"file": {}, "kind": {}, "told_facts": column("facts", keep="empty")}

    file: str
    kind: str
    parts: tuple[Part, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None

    @property
    def unreadable(self) -> bool:
        return self.kind == "unreadable"

    @property
    def told_facts(self) -> dict[str, Any]:
        """What documents say of it: the facts, or why there are none."""
        return {"why": self.why} if self.unreadable else dict(self.facts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """All files of one question, as the rules see them, and what the estimator expects of the run that each is of.

    ``network_bytes_per_s`` is what is stated of the network between nodes, one way, of one node.
    """

    readings: tuple[Reading, ...]
    expectations: Mapping[str, Expectation] = field(default_factory=dict)
    network_bytes_per_s: float | None = None

    def parts(self, kind: str) -> Iterator[tuple[str, Part]]:
        """(file, part) of every file that holds records of this kind, whatever else it holds."""
        for reading in self.readings:
            for part in reading.parts:
                if part.kind == kind:
                    yield reading.file, part

    def has(self, kind: str) -> bool:
        return next(self.parts(kind), None) is not None


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """The gravest first, roots before what follows from them; of equals the order of the rules stands."""
    return tuple(sorted(findings, key=lambda one: (_SEVERITIES.index(one.severity), _ROLES.index(one.role))))


def text_of(value: object, most: int = 200) -> str:
    """A plain value as a short text, "" for anything else: the text of nested values that share parts has no end."""
    if isinstance(value, str):
        return value[:most]
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**30):
        return str(value)
    return ""
