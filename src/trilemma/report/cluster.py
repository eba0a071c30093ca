"""A simulation of a cluster on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from trilemma.errors import shorten
from trilemma.quantities import counted, show_count
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped
from trilemma.simulation.cluster.outcome import ClusterSimulation, IdleJob, JobsEfficiency, PolicyOutcome, StartForecast

#: Rows of waits that are shown without `explain`.
_MOST_WAITS = 14
#: Groups of jobs whose use of the cards is shown without `explain`.
_MOST_GROUPS = 8


def render_cluster(found: ClusterSimulation, *, explain: bool, width: int) -> str:
    """What jobs waited, where the hours went, what else would give."""
    if found.outcome.allocated_at_demand:
        return "\n\n".join([_head(found), _demand(found.outcome, found.compared)])
    parts = [_head(found), _waits(found.outcome, explain), _hours(found.outcome, _unit(found))]
    if len(found.queues) > 1 or found.ends:
        parts.append(_usage(found, explain))
    if found.idle_jobs:
        parts.append(_idle(found.idle_jobs, explain))
    if found.efficiency:
        parts.append(_efficiency(found.efficiency, explain))
    if found.wait is not None:
        wait = found.wait
        told = f", told by {wait.like:,} of any size" if wait.alike == "load" else ""
        parts.append(
            f"a job of {wait.job} now: starts in {_time(wait.wait_s)}, 80 % of such jobs within {_time(wait.low_s)} to"
            f" {_time(wait.high_s)}{told}\n(of {wait.judged:,} jobs left out {wait.held_out_coverage:.0%} fell into such bounds"
            + (
                f", {wait.waiting_coverage:.0%} of the {wait.waiting:,} that had to wait)"
                if wait.waiting_coverage is not None
                else ")"
            )
        )
    if found.forecast:
        parts.append(_forecast(found.forecast))
    if found.compared:
        parts.append(_compared(found))
    if found.exported:
        parts.append("\n".join(f"exported: {one}" for one in found.exported))
    notes = [f"note: {one.message}" for one in found.warnings]
    return "\n\n".join([*parts, *("\n".join(wrapped(note, width)) for note in notes)])


def _head(found: ClusterSimulation) -> str:
    outcome = found.outcome
    never = f", {show_count(outcome.unstarted)} never started" if outcome.unstarted else ""
    thrown = f"; {counted(outcome.preemptions, 'preemption')}" if outcome.preemptions else ""
    thrown += f", {counted(outcome.moves, 'move')}" if outcome.moves else ""
    return (
        f"{counted(found.jobs, 'job')} of {found.inputs['jobs']} on {counted(outcome.nodes, 'node')},"
        f" {outcome.gpus:,.0f} {_unit(found)}s · {outcome.name}\n"
        f"{show_count(outcome.completed)} done{never} in {_time(outcome.seconds_simulated)}{thrown}\n"
        f"allocated {outcome.allocated_share:.1%} of capacity, useful {outcome.useful_share:.1%}{_mfu(outcome)}"
    )


def _unit(found: ClusterSimulation) -> str:
    """What is counted: cards, or CPUs where no node has a card."""
    return "GPU" if found.inputs["gpus"] else "CPU"


def _mfu(outcome: PolicyOutcome) -> str:
    return "" if outcome.mfu_share is None else f", weighed by use {outcome.mfu_share:.1%}"


def _waits(outcome: PolicyOutcome, explain: bool) -> str:
    rows = [
        [jobs_of(name), f"{one['jobs']:,}", *(_time(one[what]) for what in ("mean", "p50", "p90"))]
        for name, one in outcome.waits_s.items()
    ]
    left = len(rows) - _MOST_WAITS
    table = render_table(
        ["wait of", "jobs", "mean", "P50", "P90"], rows if explain else rows[:_MOST_WAITS], align="lrrrr"
    )
    return table if explain or left <= 0 else f"{table}\n… {counted(left, 'more group')}: --explain"


def jobs_of(group: str) -> str:
    """Jobs of a gang size or queue, whose waits stand together."""
    if group == "all":
        return "all jobs"
    is_size = group == "<1" or group.replace(".", "", 1).isdigit()
    return f"{group} GPU{'' if group in ('1', '<1') else 's'}" if is_size else group


def _hours(outcome: PolicyOutcome, unit: str) -> str:
    hours = outcome.gpu_hours
    scale = max(hours.capacity, 1e-12)
    lines = [("useful", hours.useful), ("fragmented: enough free, no place", hours.fragmented)]
    lines += [(_WORDS[name], value) for name, value in hours.of_idle.items()]
    lines += [(_WORDS[name], value) for name, value in hours.of_lost.items() if value]
    rows = [[words, f"{value:,.1f}", f"{value / scale:.1%}"] for words, value in lines]
    return render_table([f"{unit}-hours", f"{hours.capacity:,.1f}", "100.0%"], rows, align="lrr")


def _efficiency(groups: Sequence[JobsEfficiency], explain: bool) -> str:
    """How well jobs use their cards, and what nearer places or better plans would give back."""
    rows = []
    for one in groups if explain else groups[:_MOST_GROUPS]:
        plan = f"{one.plan_gain_gpu_hours:,.0f} by {one.best_layout}" if one.plan_gain_gpu_hours is not None else ""
        rows.append([
            shorten(one.training, most=40), f"{one.gpus:g}", f"{one.jobs:,}", f"{one.gpu_hours:,.0f}", _share_of(one.mfu),
            _share_of(one.nearest_mfu), f"{one.place_gain_gpu_hours:,.0f}" if one.place_gain_gpu_hours else "", plan,
        ])  # fmt: skip
    headers = ["training", "GPUs", "jobs", "GPU-hours", "MFU", "MFU nearest", "gained there", "gained by a better plan"]
    there = [at for at, _ in enumerate(headers) if any(row[at] for row in rows)]
    headers, rows = [headers[at] for at in there], [[row[at] for at in there] for row in rows]
    left = len(groups) - len(rows)
    table = render_table(headers, rows, align="".join("lrrrrrrl"[at] for at in there))
    return table if left <= 0 else f"{table}\n… {counted(left, 'more group')}: --explain"


def _usage(found: ClusterSimulation, explain: bool) -> str:
    """Hours and waits by queue, hours by how jobs ended."""
    rows = [
        [
            shorten(one.queue, most=32), f"{one.jobs:,}", f"{one.gpu_hours:,.0f}", f"{one.share:.1%}",
            "" if one.wait_p50_s is None else _time(one.wait_p50_s), "" if one.wait_p90_s is None else _time(one.wait_p90_s),
            _share_of(one.mfu),
        ]
        for one in found.queues
    ]  # fmt: skip
    headers = ["queue", "jobs", f"{_unit(found)}-hours", "of capacity", "wait, P50", "wait, P90", "use"]
    if not any(row[-1] for row in rows):
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    shown = rows if explain else rows[:_MOST_GROUPS]
    parts = [render_table(headers, shown, align="l" + "r" * (len(headers) - 1))] if len(found.queues) > 1 else []
    ends = [[one.state.lower(), f"{one.jobs:,}", f"{one.gpu_hours:,.0f}", f"{one.share:.1%}"] for one in found.ends]
    parts += (
        [render_table(["last seen", "jobs", f"{_unit(found)}-hours", "of all"], ends, align="lrrr")] if ends else []
    )
    return "\n\n".join(parts)


def _idle(jobs: Sequence[IdleJob], explain: bool) -> str:
    rows = [
        [
            shorten(one.job, most=24), shorten(one.user or one.queue, most=20), f"{one.gpus:g}", f"{one.gpu_hours:,.0f}",
            f"{one.mfu:.1%}", f"{one.usual_mfu:.1%}", f"{one.gain_gpu_hours:,.0f}",
        ]
        for one in (jobs if explain else jobs[:_MOST_GROUPS])
    ]  # fmt: skip
    headers = ["uses its cards little", "of", "GPUs", "GPU-hours", "use", "3 of 4 alike", "hours to gain"]
    return render_table(headers, rows, align="llrrrrr")


def _forecast(every: Sequence[StartForecast]) -> str:
    """When the job starts, as things are and otherwise."""
    first = every[0]
    by = first.by_s
    rows = [
        [
            one.name, f"{one.nodes:,}",
            *("beyond 30 d" if at is None else _time(at) for at in (one.wait_s, one.low_s, one.high_s)),
            *([] if one.chance is None else [f"{one.chance:.0%}"]),
        ]
        for one in every
    ]  # fmt: skip
    headers = ["policy", "nodes", "starts in", "80 % from", "to", *([] if by is None else [f"within {_time(by)}"])]
    table = render_table(headers, rows, align="l" + "r" * (len(headers) - 1))
    queue = f" in {first.queue}" if first.queue else ""
    return f"a job of {first.gpus:g} GPUs{queue} that comes now ({first.draws} runs from who runs and who waits)\n\n{table}"


def _share_of(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


_WORDS = {
    "nobody_waits": "idle: nobody waits",
    "too_little_free": "idle: less free than jobs wait for",
    "preemption": "lost to preemptions",
    "failure": "lost to failures",
    "starting": "held, not begun",
    "moving": "spent on moving and resizing",
    "down": "nodes down",
}


def _demand(outcome: PolicyOutcome, compared: Sequence[PolicyOutcome]) -> str:
    """Allocated share where jobs ask for so much of the cluster and stay, a column a policy."""
    every = (outcome, *compared)
    shown = [at for at in outcome.allocated_at_demand if int(at) >= 50] or list(outcome.allocated_at_demand)
    rows = [[f"{at} %", *(_share(one.allocated_at_demand.get(at)) for one in every)] for at in shown]
    return render_table(["jobs ask for", *(one.name for one in every)], rows, align="r" * (1 + len(every)))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _compared(found: ClusterSimulation) -> str:
    rows = []
    for one in (found.outcome, *found.compared):
        waits, hours = one.waits_s.get("all", {}), one.gpu_hours
        scale = max(hours.capacity, 1e-12)
        rows.append([
            one.name, f"{one.nodes:,}", f"{one.allocated_share:.1%}", _time(waits.get("mean", 0.0)), _time(waits.get("p90", 0.0)),
            f"{hours.fragmented / scale:.1%}", f"{hours.lost / scale:.1%}", str(one.preemptions),
        ])  # fmt: skip
    headers = ["policy", "nodes", "allocated", "wait, mean", "wait, P90", "fragmented", "lost", "preempted"]
    return render_table(headers, rows, align="lrrrrrrr")


def _time(seconds: float) -> str:
    """Seconds as people say them."""
    for size, word in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {word}"
    return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
