"""NVLinks that are down on some GPUs of a machine and up on others."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.nvlink_status import KIND
from trilemma.diagnosis.rules import Rule


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        down = [link for link in part.events if link.values["gb_s"] is None]
        if not down or len(down) == len(part.events):  # a machine without a bridge has none up
            continue
        gpus = ", ".join(dict.fromkeys(str(link.values["gpu"]) for link in down))
        speed = max(link.values["gb_s"] for link in part.events if link.values["gb_s"] is not None)
        yield Finding(
            id="gpu.links-down",
            role="root",
            severity="warning",
            claim=f"{len(down)} of {len(part.events)} NVLinks are down, on GPUs {gpus}",
            evidence=tuple(
                Evidence(
                    file=file, line=link.line, value=f"GPU {link.values['gpu']} link {link.values['link']}: inactive"
                )
                for link in down[:8]
            ),
            expected="every link up",
            observed=f"{len(down)} down",
            confidence="supported",
            fix="nvidia-smi nvlink -e and the kernel log (Xid 74) for these GPUs; reset them, restart the fabric manager",
            predicted_effect=f"{speed:g} GB/s more one way for each link",
        )


RULE = Rule(needs=(KIND,), judge=_judge)
