"""Components that gpud calls unhealthy or degraded, with its reason and the repair that it suggests."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.gpud_states import KIND
from trilemma.diagnosis.rules import Rule

#: gpud's words for repairs (api/v1/types.go).
_REPAIRS = {
    "REBOOT_SYSTEM": "reboot the node", "HARDWARE_INSPECTION": "take the node out and have its hardware inspected",
    "CHECK_USER_APP_AND_GPU": "look at the program first, then at the GPU", "IGNORE_NO_ACTION_REQUIRED": "nothing is needed",
}  # fmt: skip


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        for event in part.events:
            values = event.values
            harmless = "IGNORE_NO_ACTION_REQUIRED" in values["repairs"]
            grave = values["health"] == "Unhealthy" and not harmless
            yield Finding(
                id=f"machine.{values['component']}",
                role="context" if harmless else "root" if grave else "symptom",
                severity="context" if harmless else "error" if grave else "warning",
                claim=f"{values['component']} is {values['health'].lower()}: {values['reason'] or 'no reason given'}",
                evidence=(Evidence(file=file, value=f"{values['component']}: {values['health']}"),),
                expected="Healthy", observed=values["health"], confidence="established",
                fix="; ".join(_REPAIRS.get(one, one.lower().replace("_", " ")) for one in values["repairs"]) or None,
            )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
