"""What metrics of engines and of DCGM say: Xid, clocks held down, preemptions, a prefix cache that is off, counters left out.

Bits of ``DCGM_FI_DEV_CLOCK_THROTTLE_REASONS``: nvml.h (nvmlClocksEventReasons); 1 is idle, 4 the power cap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing
from trilemma.diagnosis.readers.dcgm_counters import KIND as COUNTERS
from trilemma.diagnosis.readers.prometheus import KIND
from trilemma.diagnosis.rules import Rule

_REASONS = {
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
#: Without these a busy GPU cannot be told from one that only has a kernel resident.
_TELLING = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY")


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for file, part in case.parts(KIND):
        series: Mapping[str, Mapping[str, float]] = part.whole or {}
        yield from _gpus(file, series)
        yield from _engine(file, series)
    for file, part in case.parts(COUNTERS):
        absent = [name for name in _TELLING if name in part.facts["fields_left_out"]]
        if absent:
            yield Missing(what=f"{', '.join(absent)}: commented out in {file}; without them a GPU that computes cannot be told "
                               "from one that waits")  # fmt: skip


def _each(series: Mapping[str, Mapping[str, float]], *names: str) -> Iterator[tuple[str, str, float]]:
    for name in names:
        for labels, value in series.get(name, {}).items():
            yield name, labels, value


def _gpus(file: str, series: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    for name, labels, value in _each(series, "DCGM_FI_DEV_XID_ERRORS"):
        if value > 0:
            yield Finding(
                id=f"gpu.xid-{value:.0f}", role="root", severity="error", claim=f"DCGM reports Xid {value:.0f} on {labels[:120]}",
                evidence=(Evidence(file=file, value=f"{name}{labels[:200]} {value:.0f}"),), expected="no Xid",
                observed=f"Xid {value:.0f}", confidence="supported",
                fix="the kernel log says which process and what came before; see the remedy of this Xid there",
            )  # fmt: skip
    for name, labels, value in _each(series, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"):
        reasons = [word for bit, word in _REASONS.items() if 0 <= value < 2**63 and int(value) & bit]
        if reasons:
            yield Finding(
                id="gpu.clocks-held-down", role="root", severity="warning",
                claim=f"clocks are held down by {', '.join(reasons)} on {labels[:120]}",
                evidence=(Evidence(file=file, value=f"{name}{labels[:200]} {value:.0f}"),), observed=", ".join(reasons),
                confidence="supported", fix="look at cooling and power supply",
            )  # fmt: skip
    for name, labels, value in _each(series, "DCGM_FI_DEV_ROW_REMAP_FAILURE"):
        if value > 0:
            yield Finding(
                id="gpu.row-remap-failed", role="root", severity="error",
                claim=f"remapping a row of memory failed on {labels[:120]}",
                evidence=(Evidence(file=file, value=f"{name}{labels[:200]} {value:.0f}"),), confidence="established",
                fix="have the GPU replaced",
            )  # fmt: skip


def _engine(file: str, series: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    for name, values in series.items():
        total = sum(values.values())
        if name.endswith("num_preemptions_total") and total > 0:
            yield Finding(
                id="serving.preemptions", role="symptom", severity="warning",
                claim=f"requests were preempted for lack of cache {total:,.0f} times; each is computed again",
                evidence=(Evidence(file=file, value=f"{name} {total:.0f}"),), expected="0 preemptions",
                observed=f"{total:,.0f}", confidence="established",
                fix="fewer sequences at once, a larger share of memory for the cache, FP8 cache, or more GPUs",
            )  # fmt: skip
        if name.endswith(":cache_config_info"):
            off = [labels for labels in values if 'enable_prefix_caching="False"' in labels]
            if off:
                yield Finding(
                    id="serving.prefix-cache-off", role="context", severity="context",
                    claim="prefix caching is off: prompts that begin alike are computed anew each time",
                    evidence=(Evidence(file=file, value=f"{name}{off[0][:300]}"),), observed="enable_prefix_caching False",
                    confidence="established", fix="--enable-prefix-caching, where prompts share a beginning",
                )  # fmt: skip


RULE = Rule(needs=(KIND, COUNTERS), judge=_judge)
