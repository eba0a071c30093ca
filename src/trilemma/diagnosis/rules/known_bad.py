"""Versions of engines, libraries and drivers that do not go together (data/diagnosis/known_bad.toml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.gpus import capability_of, gpus_in
from trilemma.diagnosis.readers.package_versions import KIND
from trilemma.diagnosis.rules import Rule

Version = tuple[int, ...]
_BUILT_FOR = re.compile(r"\+cu(\d{2})(\d)$")
_BOUND = re.compile(r"(>=|<=|<|>|==)(\d+(?:\.\d+){0,3})")


def _judge(case: Case) -> Iterator[Finding]:
    installed = _installed(case)
    told = {**{name: (version, proof) for name, (version, proof) in installed.items()}, **_driver(case)}
    capabilities = _capabilities(case)
    for row in _rows():
        proofs = _matching(row["when"], told, capabilities)
        if proofs:
            yield Finding(
                id=f"version.{row['id']}",
                role="root",
                severity=row["severity"],
                claim=row["claim"],
                evidence=tuple(proofs),
                confidence="established" if row["severity"] == "error" else "supported",
                expected=", ".join(f"not {name} {bounds}" for name, bounds in row["when"].items()),
                observed=", ".join(proof.value for proof in proofs),
                fix=f"{row['fix']} ({row['source']})",
            )


@cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_data("diagnosis/known_bad.toml")["row"])


def _matching(
    when: Mapping[str, str], told: Mapping[str, tuple[str, Evidence]], capabilities: Mapping[float, Evidence]
) -> list[Evidence]:
    """What shows that every condition holds; empty where one does not, or is not known."""
    proofs = []
    for name, bounds in when.items():
        if name == "capability":
            found = next((proof for one, proof in capabilities.items() if within(f"{one:g}", bounds)), None)
        else:
            version, found = told.get(name, ("", None))
            found = found if version and within(version, bounds) else None
        if found is None:
            return []
        proofs.append(found)
    return proofs


def within(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as ``>=12,<13``; numbers alone are compared, missing ones count as zero."""
    own = _numbers(version)
    for sign, bound in _BOUND.findall(bounds):
        other = _numbers(bound)
        holds = {">=": own >= other, "<": own < other, "<=": own <= other, ">": own > other, "==": own == other}[sign]
        if not holds:
            return False
    return bool(own)


def _numbers(text: str) -> Version:
    found = re.match(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})", text)
    return (*(int(part) for part in found[1].split(".")), 0, 0, 0, 0)[:4] if found else ()


def _installed(case: Case) -> dict[str, tuple[str, Evidence]]:
    found: dict[str, tuple[str, Evidence]] = {}
    for file, part in case.parts(KIND):
        for event in part.events:
            name, version = event.values["package"], event.values["version"]
            proof = Evidence(file=file, line=event.line, value=f"{name} {version}")
            found.setdefault(name, (version, proof))
            if name == "torch" and (built := _BUILT_FOR.search(version)):
                found.setdefault("torch-cuda", (f"{built[1]}.{built[2]}", proof))
    return found


def _driver(case: Case) -> dict[str, tuple[str, Evidence]]:
    found = driver_of(case)
    return {} if found is None else {"driver": found}


def driver_of(case: Case) -> tuple[str, Evidence] | None:
    """Version of the driver that a file states, and where."""
    for reading in case.readings:
        told: Any = reading.facts.get("driver_version")
        if isinstance(told, str) and re.match(r"\d{3}\.\d", told):
            return told, Evidence(file=reading.file, value=f"driver {told}")
    return None


def _capabilities(case: Case) -> dict[float, Evidence]:
    found: dict[float, Evidence] = {}
    for file, _, gpu in gpus_in(case):
        capability = capability_of(gpu)
        if capability is not None:
            found.setdefault(capability, Evidence(file=file, line=gpu.line, value=gpu.values["name"]))
    return found


RULE = Rule(needs=(KIND,), judge=_judge)
