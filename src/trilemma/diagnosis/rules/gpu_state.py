"""The state of GPUs that nvidia-smi reports: memory to be repaired, clocks held down, links narrower than they could be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.diagnosis.findings import Case, Evidence, Finding, Severity
from trilemma.diagnosis.gpus import KINDS, gpus_in
from trilemma.diagnosis.rules import Rule

_WELL = ("", "None", "N/A")


def _judge(case: Case) -> Iterator[Finding]:
    told: set[tuple[str, str, str]] = set()
    for file, _, event in gpus_in(case):
        for name, severity, claim, fix in _faults(event.values):
            if (same := (event.values["gpu"], name, claim)) in told:  # two tools say it
                continue
            told.add(same)
            yield Finding(
                id=f"gpu.{name}",
                role="context" if severity == "context" else "root",
                severity=severity,
                claim=f"GPU {event.values['gpu']} ({event.values['name']}): {claim}",
                evidence=(Evidence(file=file, line=event.line, value=f"GPU {event.values['gpu']}: {claim}"),),
                observed=claim,
                confidence="established" if severity == "error" else "supported",
                fix=fix,
            )


def _faults(values: Any) -> Iterator[tuple[str, Severity, str, str]]:
    if values["remap_failed"]:
        yield "row-remap-failed", "error", "remapping a row of memory failed", "have the GPU replaced"
    elif values["remap_pending"]:
        yield (
            "row-remap-pending",
            "warning",
            "a row of memory waits for its remapping",
            "drain the node and reset the GPU",
        )
    if values["uncorrected_errors"]:
        errors = values["uncorrected_errors"]
        yield (
            "uncorrected-errors",
            "error",
            f"{errors} uncorrected memory errors since the driver was loaded",
            "reset the GPU",
        )
    if values["recovery_action"] not in _WELL:
        yield (
            "recovery-needed",
            "error",
            f"the driver asks for: {values['recovery_action']}",
            "do so before the next job",
        )
    if values["slowed_by"]:
        reasons = ", ".join(values["slowed_by"])
        hot = "" if values["temperature_c"] is None else f" at {values['temperature_c']:g} °C"
        yield (
            "clocks-held-down",
            "warning",
            f"clocks are held down by {reasons}{hot}",
            "look at cooling and power supply",
        )
    width, most = values["link_width"], values["link_width_most"]
    if width and most and width < most:
        told = f"PCIe has {width:g} of {most:g} lanes (some slots and clouds are made so)"
        yield (
            "pcie-width",
            "context",
            told,
            "compare with the other GPUs of the machine; reseat the card if it stands alone",
        )


RULE = Rule(needs=KINDS, judge=_judge)
