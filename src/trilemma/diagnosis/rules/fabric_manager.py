"""Errors of switches and links that the fabric manager logs."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.fabric_manager import KIND
from trilemma.diagnosis.rules import Rule

#: A port that reports errors that are not fatal as often as this is worn.
_OFTEN = 10


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        for event in part.events:
            values = event.values
            proof = (Evidence(file=file, line=event.line, value=values["text"]),)
            if "number" not in values:
                if values["level"] in ("CRITICAL", "FATAL"):
                    yield Finding(
                        id="switch.fabric-manager", role="root", severity="error", claim=values["text"][:200],
                        evidence=proof, confidence="supported", fix="restart the fabric manager once no job runs",
                    )  # fmt: skip
                continue
            port = f" port {values['port']}" if values["port"] else ""
            often = values["count"] >= _OFTEN
            yield Finding(
                id=f"switch.sxid-{values['number']}",
                role="root" if values["fatal"] or often else "context",
                severity="error" if values["fatal"] else "warning" if often else "context",
                claim=f"NVSwitch {values['switch']}{port}: {'fatal' if values['fatal'] else 'non-fatal'} error "
                f"{values['number']}, {values['count']} times",
                evidence=proof,
                observed=f"SXid {values['number']}",
                expected="no SXid" if values["fatal"] or often else None,
                confidence="established",
                fix="reset all GPUs and switches and restart the fabric manager; if it comes back, replace the baseboard"
                if values["fatal"] else None,
            )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
