"""An estimate for people: one screen, bars where lengths say more than digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.estimate.estimate import Estimate
from trilemma.estimate.measured import LogComparison
from trilemma.hardware.price import price_words
from trilemma.intervals import Interval
from trilemma.memory.ledger import Line
from trilemma.quantities import GIB, counted, show_count, show_gib, show_usd
from trilemma.report.bars import bar
from trilemma.report.commands import run_lines
from trilemma.report.operators import operator_table
from trilemma.report.speed import speed_lines
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped

#: Cells of a bar at most and at least, and columns of the ledger beside them.
_BAR_CELLS, _LEAST_CELLS, _BESIDE_BARS = 30, 17, 63
#: What each ledger line is called on screen.
LEDGER_NAMES = {
    "kv_cache": "KV cache pool",
    "state_cache": "state cache",
    "cuda_graphs": "CUDA graphs",
    "context": "CUDA context",
    "workspace": "workspace, non-torch",
    "draft_model": "draft model",
    "libraries": "cuBLAS workspaces",
    "master_weights": "master weights",
    "offload_buffers": "offload buffers",
}


def render_estimate(estimate: Estimate, *, explain: bool = False, width: int = 100) -> str:
    """The whole answer: verdict, ledger, cache, speed, cost, remedies, warnings."""
    parts = [*_headline(estimate, width), "", *_ledger(estimate, width)]
    if explain:
        parts += ["", *_explained(estimate, width)]
    operators = list(operator_table(estimate.speed, full=explain, width=width)) if estimate.speed else []
    for section in (
        _measured(estimate, width),
        _cache(estimate),
        list(speed_lines(estimate)),
        operators,
        _money(estimate, explain, width),
        _starting(estimate, width),
    ):
        if section:
            parts += ["", *section]
    if estimate.fits and estimate.command:
        parts += ["", "run it", *(f"  {line}" for line in run_lines(estimate))]
    if estimate.fits and estimate.commands:
        told = (f"  {one.pool}, {one.replicas} of them: {one.command}" for one in estimate.commands)
        parts += ["", "run both pools (trilemma export writes the files that join them)", *told]
    if estimate.remedies:
        parts += ["", *_remedies(estimate, width)]
    warnings = list(_warnings(estimate, width))
    if warnings:
        parts += ["", "assumed and uncertain", *warnings]
    return "\n".join(line.rstrip() for line in parts)


def _headline(estimate: Estimate, width: int) -> list[str]:
    verdict = "FITS" if estimate.verdict.stage == "ok" else f"DOES NOT FIT ({estimate.verdict.stage})"
    said = f"{verdict}, {_sure(estimate.verdict.probability)}: {estimate.verdict.reason}"
    refused = estimate.refused
    if not estimate.carries:
        overload = next(warning.message for warning in estimate.warnings if warning.code == "overloaded")
        told = wrapped(f"DOES NOT CARRY THE LOAD: {overload}", width, subsequent_indent="  ")
        return [title_of(estimate), *told, f"it starts: {said}"]
    if not refused:
        return [title_of(estimate), said]
    lines = [title_of(estimate)]
    for why in refused:
        lines += wrapped(f"THE ENGINE REFUSES THIS COMMAND: {why}", width, subsequent_indent="  ")
    return [*lines, f"without that it {said}"]


def title_of(estimate: Estimate) -> str:
    """Model, cards, engine and plan in a line."""
    asked = estimate.question
    engine = f"{asked.engine} {estimate.version}".strip()  # training frameworks have no version here
    return f"{asked.model.name} on {asked.cluster.gpus} x {asked.cluster.name} · {engine} · {estimate.summary}"


def _sure(probability: float) -> str:
    return "more than 99 % sure" if probability > 0.99 else f"{probability:.0%} sure"


def _ledger(estimate: Estimate, width: int) -> list[str]:
    memory, cells = estimate.memory, max(_LEAST_CELLS, min(_BAR_CELLS, width - _BESIDE_BARS))
    rows = [_line_row(line, memory.capacity_bytes, cells) for line in memory.ledger]
    rows.append(
        [
            "total",
            show_gib(memory.total.value),
            _range(memory.total, GIB),
            bar(memory.total.value / memory.capacity_bytes, cells),
            "",
        ]
    )
    table = render_table(
        ["memory per GPU, worst rank", "GiB", "90 % range", "share of the card", ""], rows, align="lrrll", width=width
    )
    budget = (
        f"card {show_gib(memory.capacity_bytes)} GiB · engine budget {show_gib(memory.usable_bytes)} GiB"
        f" · {_headroom(memory.headroom_bytes)}"
    )
    host = estimate.host_memory
    return [*table.splitlines(), budget, *([f"host memory: {host['words']}"] if host else [])]


def _headroom(n_bytes: float) -> str:
    return f"headroom {show_gib(n_bytes)} GiB" if n_bytes >= 0 else f"short by {show_gib(-n_bytes)} GiB"


def _line_row(line: Line, capacity_bytes: int, cells: int) -> list[str]:
    value = float(line.bytes)
    interval = Interval(value=value, low=min(float(line.low), value), high=max(float(line.high), value))
    outside = "" if line.budget == "inside" else "outside the budget"
    name = LEDGER_NAMES.get(line.name, line.name.replace("_", " "))
    return [name, show_gib(value), _range(interval, GIB), bar(value / capacity_bytes, cells), outside]


def _range(interval: Interval, unit: float, digits: int = 2) -> str:
    if interval.high - interval.low <= 1e-9 * max(abs(interval.value), 1.0):
        return "exact"
    return f"{interval.low / unit:,.{digits}f} – {interval.high / unit:,.{digits}f}"


def _explained(estimate: Estimate, width: int) -> Iterator[str]:
    yield "where each line comes from"
    for line in estimate.memory.ledger:
        yield f"  {LEDGER_NAMES.get(line.name, line.name)}: {line.formula or 'as given'}"
        if line.inputs:
            inputs = ", ".join(f"{name} = {_shown(value)}" for name, value in line.inputs.items())
            yield from wrapped(inputs, width, initial_indent="      with ", subsequent_indent="           ")
        if line.source:
            yield from wrapped(line.source, width, initial_indent="      from ", subsequent_indent="           ")


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return str(value)


def _measured(estimate: Estimate, width: int) -> list[str]:
    """Predicted beside what the log of a real start measured."""
    compared = estimate.measured
    if not compared:
        return []
    mixed = not all(one.name.endswith("_bytes") for one in compared)
    rows = [
        [
            one.name.removesuffix("_bytes").replace("_", " ")
            + (", GiB" if mixed and one.name.endswith("_bytes") else ""),
            _printed(one, one.predicted),
            f"{_printed(one, one.low)} – {_printed(one, one.high)}",
            _printed(one, one.measured),
            "outside our range" if one.diverges else "",
            _short_place(one.where),
        ]
        for one in compared
    ]
    headers = [
        "against the log" if mixed else "against the log, GiB",
        "predicted",
        "90 % range",
        "measured",
        "",
        "where",
    ]
    return render_table(headers, rows, align="lrrrll", width=width).splitlines()


def _short_place(where: str) -> str:
    """``folder/vllm.log:4`` without its folder: a long one would squeeze the figures."""
    return where.replace("\\", "/").rpartition("/")[2]


def _printed(one: LogComparison, value: float) -> str:
    return show_gib(value) if one.name.endswith("_bytes") else f"{value:,.4g}"


def _cache(estimate: Estimate) -> list[str]:
    cache = estimate.cache
    if cache is None:
        return []
    context = estimate.context
    replicas = _replicas(estimate)
    lines = [
        f"KV cache   {counted(cache.tokens.value, 'token')}"
        f" ({show_count(cache.tokens.low)} – {show_count(cache.tokens.high)}), {cache.bytes_per_token_per_gpu:,.0f} B each"
    ]
    if context:
        lines.append(f"           {cache.max_concurrency:,.2f} requests of {counted(context, 'token')} at once")
    if replicas > 1:
        lines.append(f"           in each of {counted(replicas, 'replica')}, which have a pool each")
    lines.append(
        f"           room for a single request of {counted(cache.max_context, 'token')}, within the model's own limit"
    )
    return lines


def _replicas(estimate: Estimate) -> int:
    """Attention replicas with a cache pool each, those of all engines that decode."""
    pool = estimate.question.plan.pools[-1]
    return int(pool.layout.dp) * int(pool.replicas)


def _money(estimate: Estimate, explain: bool, width: int) -> list[str]:
    if estimate.usd_per_hour is None:
        return []
    hour = estimate.usd_per_hour
    lines = [f"cost       ${show_usd(hour.value)} per hour for the plan ({_usd_range(hour)})"]
    if estimate.usd_per_million_tokens is not None:
        token = estimate.usd_per_million_tokens
        lines.append(f"           ${show_usd(token.value)} per million {_tokens(estimate)}s ({_usd_range(token)})")
    if explain:
        cards = {card.id: card for card in estimate.question.cluster.every}
        for words in map(price_words, cards.values()):
            lines += wrapped(words, width, initial_indent=" " * 11, subsequent_indent=" " * 13)
    if estimate.watts is not None:
        lines += _power_lines(estimate, estimate.watts)
    return lines


#: Phases of a start-up in words.
_PHASES = {
    "process": "process", "read": "weights read", "placed": "placed", "compile": "compiled", "capture": "graphs captured",
    "rest": "profiled and warmed up",
}  # fmt: skip


def _starting(estimate: Estimate, width: int) -> list[str]:
    """How long the engines take until they answer, and in which phases."""
    found = estimate.start_up_time
    if found is None:
        return []
    whole, before = found.seconds, found.before
    told = ", ".join(f"{_PHASES[one.name]} {one.seconds.value:,.3g}" for one in found.phases)
    if whole is None or before is None:
        words = f"seconds: {told}; {found.untold}"
    else:
        again = "" if before == whole else f"; {before.value:,.0f} s where it was compiled before"
        words = f"about {_seconds_range(whole)} until it answers{again}; of them {told}"
    return wrapped(words, width, initial_indent="starts     ", subsequent_indent="           ")


def _seconds_range(seconds: Interval) -> str:
    return f"{seconds.value:,.0f} s ({seconds.low:,.0f} – {seconds.high:,.0f})"


def _power_lines(estimate: Estimate, watts: Interval) -> list[str]:
    """What all cards draw of their limit, and what a token takes."""
    limit = show_count(estimate.question.cluster.watts or watts.high)
    if estimate.joules_per_token is None:
        return [f"power      up to {limit} W"]
    joules = estimate.joules_per_token
    return [
        f"power      {show_count(watts.value)} W ({show_count(watts.low)} – {show_count(watts.high)}) of at most {limit} W",
        f"           {joules.value:,.3g} J per {_tokens(estimate)} ({joules.low:,.3g} – {joules.high:,.3g})",
    ]


def _usd_range(price: Interval) -> str:
    return f"{show_usd(price.low, like=price.value)} – {show_usd(price.high, like=price.value)}"


def _tokens(estimate: Estimate) -> str:
    return "trained token" if estimate.training_step else "output token"


def _remedies(estimate: Estimate, width: int) -> Iterator[str]:
    yield "what would make it fit, cheapest first"
    for rank, remedy in enumerate(estimate.remedies, 1):
        yield from wrapped(
            f"{remedy.change}: {remedy.effect}; quality: {remedy.quality}",
            width,
            initial_indent=f"  {rank}. ",
            subsequent_indent="     ",
        )
        yield f"     {remedy.flags}"


def _warnings(estimate: Estimate, width: int) -> Iterator[str]:
    """What must be known, without what the headline said already."""
    said = estimate.refused
    for warning in estimate.warnings:
        if warning.message not in said and warning.code != "overloaded":
            yield from wrapped(warning.message, width, initial_indent="  - ", subsequent_indent="    ")
