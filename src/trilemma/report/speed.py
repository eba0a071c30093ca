"""The speed of a plan for people: which latency is which statistic, throughput, targets, what binds it."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.estimate.estimate import Estimate, Latency, SpeedEstimate
from trilemma.intervals import Interval
from trilemma.quantities import show_count
from trilemma.report.training import training_speed
from trilemma.timing.distance import DISTANCES


def speed_lines(estimate: Estimate) -> list[str]:
    """Latencies, throughput, targets and what binds them; empty where the plan has no speed."""
    speed = estimate.speed
    if speed is None:
        return []
    lines = list(training_speed(estimate))
    if speed.ttft_s and speed.tpot_s:
        lines.append(
            f"speed      first token {_ms(speed.ttft_s)}, then {_ms(speed.tpot_s)} per token at batch {speed.batch:,.0f}"
        )
        lines += _percentiles(speed)
    elif speed.tpot_s:
        lines.append(
            f"speed      {_ms(speed.tpot_s)} per token at batch {speed.batch:,.0f}; the wait for the first grows"
        )
    if speed.documents_per_s and speed.input_tokens_per_s:
        documents, tokens = speed.documents_per_s, speed.input_tokens_per_s
        lines.append(
            f"speed      {documents.value:,.3g} documents/s ({documents.low:,.3g} – {documents.high:,.3g}),"
            f" {show_count(tokens.value)} tokens/s of prompts ({_ends(tokens)})"
        )
    if speed.documents_per_s and speed.request_s:
        lines.append(f"           a document in {_ms(speed.request_s)}")
    if speed.output_tokens_per_s and speed.tokens_per_s_per_gpu:
        total, per_gpu = speed.output_tokens_per_s, speed.tokens_per_s_per_gpu
        lines.append(
            f"           {show_count(total.value)} output tokens/s, {show_count(per_gpu.value)} per GPU ({_ends(per_gpu)})"
        )
    if speed.ranges and not estimate.training_step:
        beside = ", beside what sets publishers apart" if speed.ranges in DISTANCES.values() else ""
        lines.append(f"           90 % ranges as {speed.ranges} tell{beside}")
    lines += [
        f"target     mean {one.name.upper()} ≤ {one.target_ms:g} ms holds with a probability of {one.probability:.0%}"
        for one in estimate.targets
    ]
    if speed.most_requests_per_s:
        most = speed.most_requests_per_s
        lines.append(f"carries    up to {most.value:.3g} requests a second ({most.low:.3g} – {most.high:.3g})")
    if estimate.bottleneck:
        lines.append(f"bound by   {estimate.bottleneck.resource.replace('_', ' ')}: {estimate.bottleneck.detail}")
    return lines


def _percentiles(speed: SpeedEstimate) -> Iterator[str]:
    """Which statistic over requests the latencies are, and their spread: a mean says little of the slowest."""
    told = [
        f"{name} {_seconds(latency.p50)} and {_seconds(latency.p99)}"
        for name, latency in (
            ("first token", speed.ttft_s),
            ("between tokens", speed.itl_s),
            ("a request", speed.request_s),
        )
        if latency is not None and latency.p50 is not None and latency.p99 is not None
    ]
    yield "           means over requests" + (f"; P50 and P99: {', '.join(told)}" if told else "")


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.1f} ms"


def _ms(latency: Latency) -> str:
    interval = latency.interval
    if interval.value >= 1:
        return f"{interval.value:,.2f} s ({interval.low:,.2f} – {interval.high:,.2f})"
    return f"{interval.value * 1e3:,.1f} ms ({interval.low * 1e3:,.1f} – {interval.high * 1e3:,.1f})"


def _ends(interval: Interval) -> str:
    return f"{interval.low:,.0f} – {interval.high:,.0f}"
