"""Cards that came down for good while they worked, though no tool raised an alarm."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Event, Evidence, Finding
from trilemma.diagnosis.rules import Rule

KINDS = ("nvidia-smi-dmon", "nvidia-smi-csv")
#: Degrees above which heat is the likely reason, degrees of a rise that tell the same, and the share of watts that tells a cap.
_HOT_C, _WARMER_C, _LESS_POWER = 82.0, 6.0, 0.95
#: Of a loss of clocks what waits for memory loses at least this part (curves of power caps, docs/power.md).
_MEMORY_LOSES = 0.5
#: Samples with a reason beyond this share are no silence.
_TOLD = 0.5


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in (one for kind in KINDS for one in case.parts(kind)):
        for event in part.events:
            if event.name == "samples" and "clock_after_mhz" in event.values:
                yield _finding(file, event)


def _finding(file: str, event: Event) -> Finding:
    told = event.values
    before, after = told["clock_before_mhz"], told["clock_after_mhz"]
    lost, silent = 1 - after / before, told.get("told_share", 0.0) < _TOLD
    beside = [
        f"{told[f'{name}_before']:g} to {told[f'{name}_after']:g} {unit}"
        for name, unit in (("temperature_c", "C"), ("power_w", "W"))
        if f"{name}_before" in told and f"{name}_after" in told
    ]
    words = "silently" if silent else "with violations of its limits told"
    return Finding(
        id="gpu.derated",
        role="root",
        severity="warning",
        claim=f"GPU {told['gpu']} works at {after:,.0f} MHz where it had {before:,.0f} before, {words}"
        + (f" ({', '.join(beside)})" if beside else ""),
        evidence=(
            Evidence(
                file=file, line=told["fell_at_line"], value=f"{before:,.0f} MHz before, {after:,.0f} from here on"
            ),
        ),
        expected=f"{before:,.0f} MHz",
        observed=f"{after:,.0f} MHz",
        confidence="supported",
        fix=_fix(event),
        predicted_effect=f"{lost * _MEMORY_LOSES:.0%} to {lost:.0%} fewer tokens since: less where memory is waited for",
    )


def _fix(event: Event) -> str:
    told = event.values
    hotter = told.get("temperature_c_after", 0.0)
    rise = hotter - told.get("temperature_c_before", hotter)
    if hotter >= _HOT_C or rise >= _WARMER_C:
        return (
            "heat: fans, dust, inlet temperature, neighbours; nvidia-smi -q -d PERFORMANCE,TEMPERATURE names the reason"
        )
    power = told.get("power_w_after"), told.get("power_w_before")
    if power[0] and power[1] and power[0] < _LESS_POWER * power[1]:
        return (
            "a lower power limit or locked clocks: nvidia-smi -q -d POWER,CLOCK; nvidia-smi -pl and -rgc set them back"
        )
    return "nvidia-smi -q -d PERFORMANCE names the reason; nvidia-smi -rgc sets locked clocks back"


RULE = Rule(needs=KINDS, judge=_judge)
