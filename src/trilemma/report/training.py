"""The speed of a training plan for people: step, throughput, where the seconds go, how long the run takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trilemma.estimate.estimate import Estimate
from trilemma.intervals import Interval
from trilemma.quantities import counted, show_count
from trilemma.report.bars import bar

_CELLS = 24
#: Lines of a step that are not called by their key.
LINE_NAMES = {"newton_schulz": "Newton–Schulz"}
#: Lines below this share of the step are summed up.
_LEAST_SHARE = 0.005


def training_speed(estimate: Estimate) -> Iterator[str]:
    """Lines of the section; empty where the estimate is not one of training."""
    speed, step = estimate.speed, estimate.training_step
    if not step or speed is None or speed.step_s is None:
        return
    interval = speed.step_s.interval
    yield f"step       {_seconds(interval.value)} s ({_seconds(interval.low)} – {_seconds(interval.high)})"
    rate = speed.tokens_per_s_per_gpu
    if rate is not None:
        gpus = estimate.question.cluster.gpus
        yield (
            f"           {show_count(rate.value)} tokens/s per GPU ({show_count(rate.low)} – {show_count(rate.high)}),"
            f" {show_count(rate.value * gpus)} in all"
        )
    if speed.mfu is not None:
        hfu = f", HFU {speed.hfu.value:.1%}" if speed.hfu is not None else ""
        counted = f"{step['flops_convention']} attention, dense {step['mfu_peak']} peak"
        yield f"           MFU {speed.mfu.value:.1%}{hfu} ({counted})"
    shares = (("communication exposed", speed.comm_fraction), ("bubble", speed.bubble_fraction))
    told = [f"{name} {share.value:.1%}" for name, share in shares if isinstance(share, Interval)]
    if step.get("hidden_comm_fraction"):
        told.insert(1, f"hidden {step['hidden_comm_fraction']:.1%}")
    yield f"           of the step: {', '.join(told)}"
    if speed.ranges:
        yield f"           90 % ranges as {speed.ranges} tell"
    yield from _where(estimate, interval.value)
    yield from _run(estimate)


def _where(estimate: Estimate, total: float) -> Iterator[str]:
    lines = estimate.speed.lines if estimate.speed else {}
    small = 0.0
    for name, seconds in lines.items():
        if seconds < _LEAST_SHARE * total:
            small += seconds
            continue
        yield _part(LINE_NAMES.get(name, name.replace("_", " ")), seconds, total)
    if small > 0:
        yield _part("the rest", small, total)


def _part(name: str, seconds: float, total: float) -> str:
    share = seconds / total
    return f"           {name:<18} {_seconds(seconds):>8} s  {bar(share, _CELLS)} {share:4.0%}"


def _run(estimate: Estimate) -> Iterator[str]:
    run = estimate.training_run
    if not run:
        return
    days = run["days"]
    yield f"run        {days['value']:,.1f} days ({days['low']:,.1f} – {days['high']:,.1f}), {counted(run['steps'], 'step')}"
    costs = list(run_costs(run))
    if costs:
        yield f"           {', '.join(costs)}"
    if not run["checkpoint_every_steps"]:
        return
    every = show_count(run["checkpoint_every_steps"])
    size = run["checkpoint_bytes"]
    told = f"{size / 1e12:,.1f} TB" if size >= 1e12 else f"{size / 1e9:,.0f} GB"
    yield f"           a checkpoint of {told} every {every} steps; goodput {run['goodput']:.1%}"
    if run["interruptions"]:
        apart = run["hours_between_interruptions"]
        yield f"           {run['interruptions']:,.1f} interruptions, one every {apart:,.1f} hours"


def run_costs(run: Mapping[str, Any]) -> Iterator[str]:
    """Dollars and energy of a whole run."""
    if "usd" in run:
        usd = run["usd"]
        yield f"${usd['value']:,.0f} ({usd['low']:,.0f} – {usd['high']:,.0f})"
    if "kwh" in run:
        kwh = run["kwh"]["value"]
        yield f"{kwh / 1e3:,.1f} MWh of the boards" if kwh >= 1e3 else f"{kwh:,.0f} kWh of the boards"


def _seconds(value: float) -> str:
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"
