"""Findings of a linter: a place, a claim, what would be right, and where that stands."""

from __future__ import annotations

import ast
from typing import Literal

from trilemma.diagnosis.findings import Confidence, Evidence, Finding, Severity
from trilemma.linting.script import Script


def said(
    name: str,
    claim: str,
    *,
    file: str,
    line: int | None,
    value: str,
    fix: str | None,
    severity: Severity = "error",
    confidence: Confidence = "established",
    effect: str | None = None,
) -> Finding:
    """One finding, at one place."""
    role: Literal["root", "context"] = "context" if severity == "context" else "root"
    return Finding(
        id=name, role=role, severity=severity, claim=claim, evidence=(Evidence(file=file, line=line, value=value),),
        confidence=confidence, fix=fix, predicted_effect=effect,
    )  # fmt: skip


def at(
    script: Script,
    node: ast.AST,
    name: str,
    claim: str,
    fix: str | None,
    *,
    severity: Severity = "error",
    confidence: Confidence = "established",
    effect: str | None = None,
) -> Finding:
    """One finding at a node of a script."""
    return said(
        name, claim, file=script.file, line=script.line(node), value=script.text(node), fix=fix, severity=severity,
        confidence=confidence, effect=effect,
    )  # fmt: skip
