"""A loss that is no number."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        for event in (one for one in part.events if one.name == "bad-loss"):
            at_once = event.values["after"] == 0
            when = "from the first logged step on" if at_once else f"at step {event.values['step']}"
            yield Finding(
                id="numerics.bad-loss",
                role="symptom",
                severity="error",
                claim=f"the loss is no finite number {when}, after {event.values['after']} steps that were well",
                evidence=(Evidence(file=file, line=event.line, value=event.values["text"]),),
                expected="a finite loss",
                observed="NaN or infinite",
                confidence="established",
                fix="from the first step on: zero rows under a scale of a low-precision recipe, a wrong checkpoint, "
                "masked-out labels; run the same batch in BF16"
                if at_once
                else "go back to the checkpoint before; compare with a BF16 run (trilemma precision gate), watch gradients and "
                "activations (trilemma.watch_numerics), look for Xid and ECC errors at that time",
            )


RULE = Rule(needs=(KIND,), judge=_judge)
