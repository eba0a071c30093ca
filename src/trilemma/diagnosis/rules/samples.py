"""Utilisation, power and clocks over time: one GPU at a time, clocks held down, GPUs that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.nvidia_smi_dmon import KIND
from trilemma.diagnosis.rules import Rule

#: Utilisations that sum to one GPU within this share mean that one works at a time.
_ONE_AT_A_TIME = 0.25
_SLOWER = 0.9
_HOT_C = 87
#: A saw-tooth falls at least so often and waits, and works, for such a share of the samples.
_FALLS, _WAITING = 3, 0.2


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        gpus = [event.values for event in part.events]
        line = part.events[0].line
        busy = [one["median_utilisation_percent"] for one in gpus if "median_utilisation_percent" in one]
        if len(busy) > 1 and abs(sum(busy) - 100) < 100 * _ONE_AT_A_TIME and max(busy) < 2 * 100 / len(busy):
            yield Finding(
                id="speed.one-gpu-at-a-time", role="root", severity="warning",
                claim=f"{len(busy)} GPUs are busy {sum(busy) / len(busy):.0f} % of the time each, one at a time: layers lie on "
                "them in turn and a request passes through one after the other (device_map=\"auto\", a pipeline of one batch)",
                evidence=(Evidence(file=file, line=line, value=f"utilisation {', '.join(f'{one:g} %' for one in busy[:8])}"),),
                expected="near 100 % on each", observed=f"{sum(busy) / len(busy):.0f} % on each", confidence="supported",
                fix="tensor parallelism (an engine that cuts every layer), or as many batches in the pipeline as stages",
                predicted_effect=f"up to {len(busy)} times as fast",
            )  # fmt: skip
        yield from _saw_tooth(file, line, gpus)
        clocks = [one["median_sm_clock_mhz"] for one in gpus if one.get("median_utilisation_percent", 0) > 50
                  and "median_sm_clock_mhz" in one]  # fmt: skip
        if len(clocks) > 1 and min(clocks) < _SLOWER * max(clocks):
            slow = next(one for one in gpus if one.get("median_sm_clock_mhz") == min(clocks))
            hot = slow.get("most_temperature_c", 0)
            yield Finding(
                id="gpu.slow-clock", role="root", severity="warning",
                claim=f"GPU {slow['gpu']} runs at {min(clocks):g} MHz under load, the others at up to {max(clocks):g}"
                + (f", at {hot:g} °C" if hot >= _HOT_C else ""),
                evidence=(Evidence(file=file, line=line, value=f"GPU {slow['gpu']}: {min(clocks):g} MHz"),),
                expected=f"{max(clocks):g} MHz", observed=f"{min(clocks):g} MHz", confidence="supported",
                fix="cooling and power of this slot; nvidia-smi -q -d PERFORMANCE names the reason",
                predicted_effect=f"every rank waits for it: up to {max(clocks) / min(clocks):.2f} times as fast",
            )  # fmt: skip


def _saw_tooth(file: str, line: int | None, gpus: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Utilisation that rises and falls again and again: something that is no computation stands between the steps."""
    swing = [one for one in gpus if one.get("falls", 0) >= _FALLS]
    those = [one for one in swing if min(one["waiting_share"], one["working_share"]) >= _WAITING]
    if not those or len(those) < len(gpus) / 2:
        return
    waiting = sum(one["waiting_share"] for one in those) / len(those)
    falls = sum(one["falls"] for one in those) / len(those)
    yield Finding(
        id="speed.saw-tooth", role="symptom", severity="warning",
        claim=f"{len(those)} GPUs swing between work and waiting, {falls:.0f} times in these samples, and wait for "
        f"{waiting:.0%} of them",
        evidence=(Evidence(file=file, line=line, value=f"utilisation at most {those[0]['most_utilisation_percent']:g} %, "
                           f"waiting {waiting:.0%} of the samples"),),
        expected="the same utilisation from step to step", observed=f"waiting {waiting:.0%}", confidence="hypothesis",
        fix="what stands between the steps: the data loader (its wait in the log), checkpoints, evaluation, garbage collection, "
        "a host that prepares batches; a trace over two such swings names it",
        predicted_effect=f"up to {1 / max(1 - waiting, 0.05):.2f} times as fast",
    )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
