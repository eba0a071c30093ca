"""Words and figures of a serving plan that several screens share."""

from __future__ import annotations

from trilemma.estimate.estimate import Estimate, Latency
from trilemma.intervals import Interval
from trilemma.quantities import arrivals, counted, show_count
from trilemma.search.found import Found
from trilemma.workloads import Serving

_BAR_CELLS = 8


def memory_bar(estimate: Estimate) -> str:
    """``▕██████░░▏ 92 %``: the share of the card that the plan takes."""
    share = estimate.memory.total.value / estimate.memory.capacity_bytes
    full = round(max(0.0, min(share, 1.0)) * _BAR_CELLS)
    return f"▕{'█' * full}{'░' * (_BAR_CELLS - full)}▏ {share:.0%}".replace("%", " %")


def money(dollars: Interval | None) -> str:
    return "–" if dollars is None else f"${dollars.value:,.2f}"


def load_words(workload: Serving) -> str:
    words = [f"prompts of {show_count(workload.isl or 0)}, outputs of {counted(workload.osl or 0, 'token')}"]
    if workload.concurrency is not None:
        words.append(f"{counted(workload.concurrency, 'request')} at once")
    if workload.rate is not None:
        words.append(arrivals(workload.rate))
    for name, target in (("mean TTFT", workload.ttft_ms), ("mean TPOT", workload.tpot_ms)):
        if target is not None:
            words.append(f"{name} ≤ {target:g} ms")
    return ", ".join(words)


def seconds(latency: Latency) -> str:
    """A latency in the unit that reads best."""
    value = latency.interval.value
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.1f} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"


def weights_words(found: Found) -> str:
    precision = found.precision
    return f"{precision.name} on load" if precision.on_load else precision.name
