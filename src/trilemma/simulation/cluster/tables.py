"""Jobs, nodes and queues from tables: Philly, Helios, Acme, openb, ``sacct`` and one's own, recognised by their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from trilemma.errors import InputError, shorten
from trilemma.simulation.cluster.cells import TableColumns, TableRow
from trilemma.simulation.cluster.jobs import ClusterJob, GangShape, gang_of, ticks
from trilemma.simulation.cluster.nodes import WHOLE, ClusterNode
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.row_files import open_text, read_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDefaults:
    """What jobs are taken to be where their file does not say: checkpoints and starting again in seconds, apart or not."""

    checkpoint_s: float | None = None
    restart_s: float = 0.0
    divisible: bool = False


def read_jobs(path: Path, nodes: Sequence[ClusterNode], defaults: JobDefaults) -> list[ClusterJob]:
    """The jobs of a table in the order of their submission, the first at 0 s; all at 0 s where it does not say when they come.
    Raises `InputError` that names a bad line."""
    largest = max((one.gpus for one in nodes), default=0)
    known = {one.model for one in nodes if one.model}
    found: list[tuple[float, ClusterJob]] = []
    for row in _rows(path, "jobs", ("gpus", "tres", "pods", "cpu_milli")):
        if row.word("name").count(".") and row.columns.found["tres"]:
            continue  # a step of a Slurm job
        submit = row.seconds("submit") if row.columns.found["submit"] else 0.0
        if submit is None:
            raise row.error("it has no time of submission; give one, or leave the line out")
        shape = _shape(row, largest, known, defaults)
        work = _work(row, submit)
        try:
            job = _job(row, shape, work, defaults, len(found))
        except InputError as error:
            raise row.at_line(error) from None
        found.append((submit, job))
    if not found:
        raise InputError(f"{path.name} holds no job; give a table with a header and a line a job")
    first = min(submit for submit, _ in found)
    jobs = [replace(job, submit_ticks=ticks(submit - first)) for submit, job in found]
    return sorted(jobs, key=lambda one: one.submit_ticks)


def _shape(row: TableRow, largest: int, known: set[str], defaults: JobDefaults) -> GangShape:
    """What a job asks for; the kind of card that Slurm counted binds where a node is of that kind."""
    of_tres, kind = row.tres_gpus()
    gpus = row.whole("gpus", of_tres)
    milli = row.whole("gpu_milli", WHOLE) or WHOLE
    words = row.word("models")
    within = row.word("within")
    try:
        shape = GangShape(
            gpus=0 if gpus == 0 else 1,
            gpu_milli=milli if gpus == 1 else WHOLE,
            cpu_milli=row.whole("cpu_milli", 0),
            memory_mib=row.whole("memory_mib", 0),
            models=tuple(one for one in words.split("|") if one) if words else ((kind,) if kind in known else ()),
            within=within,
            strict=row.truth("required", default=bool(within)),
            divisible=row.truth("divisible", default=defaults.divisible),
        )
        pods = row.whole("pods", 0)
        if pods:
            each = row.whole("pod_gpus", 0) or (gpus // pods if gpus else 0)
            if gpus and each * pods != gpus:
                raise row.error(f"{gpus} GPUs are not shared evenly by {pods} pods; give gpus as a multiple of pods")
            return replace(shape, pods=pods, gpus=each, fewest_pods=row.whole("fewest_pods", 0))
        return shape if gpus <= 1 else gang_of(gpus, largest, shape)
    except InputError as error:
        raise row.at_line(error) from None


def _work(row: TableRow, submit: float) -> int | None:
    """Ticks of work: as stated, else from start to end; None where the end is not known."""
    duration = row.seconds("duration")
    start, end = row.seconds("start"), row.seconds("end")
    if duration is None and end is not None:
        duration = end - (submit if start is None else start)
        if duration < 0:
            raise row.error(f"it ends {-duration:g} s before it starts; mend start or end")
    return None if duration is None else ticks(duration)


def _job(row: TableRow, shape: GangShape, work: int | None, defaults: JobDefaults, at: int) -> ClusterJob:
    checkpoint, restart = row.seconds("checkpoint"), row.seconds("restart")
    checkpoint = defaults.checkpoint_s if checkpoint is None else checkpoint
    limit = row.seconds("limit")
    return ClusterJob(
        name=row.word("name") or f"job-{at}",
        submit_ticks=0,
        work_ticks=work,
        shape=shape,
        queue=row.word("queue"),
        priority=row.signed("priority"),
        preemptible=row.truth("preemptible", default=True),
        checkpoint_ticks=None if checkpoint is None else ticks(checkpoint),
        restart_ticks=ticks(defaults.restart_s if restart is None else restart),
        limit_ticks=None if limit is None else ticks(limit),
        user=row.word("user"),
        kind=row.word("kind"),
        training=row.word("command") or row.word("model"),
        steps=row.number("steps"),
        mfu=row.number("mfu"),
        lazy=row.truth("lazy"),
        line=row.line,
    )


def read_nodes(path: Path) -> list[ClusterNode]:
    """The nodes of a table."""
    nodes: list[ClusterNode] = []
    names: set[str] = set()
    for row in _rows(path, "nodes", ("name",), ("gpus", "cpu_milli")):
        if (name := row.word("name")) in names:
            raise row.wrong("node", name, "is stated twice; give each name once")
        names.add(name)
        domains: Any = {level: row.word(level) for level in ("nvlink", "leaf", "rack", "block")}
        try:
            nodes.append(
                ClusterNode(
                    name=name, gpus=row.whole("gpus", 0), model=row.word("model"),
                    cpu_milli=row.whole("cpu_milli", 0), memory_mib=row.whole("memory_mib", 0),
                    sockets=row.whole("sockets", 1), one_socket=row.truth("one_socket"), **domains,
                )
            )  # fmt: skip
        except InputError as error:
            raise row.at_line(error) from None
    if not nodes:
        raise InputError(f"{path.name} holds no node; give a table with a header and a line a node")
    return nodes


def read_queues(path: Path, node_gpus: int) -> list[QueueQuota]:
    """The queues of a table; quotas in GPUs, or in nodes of ``node_gpus``."""
    queues = []
    for row in _rows(path, "queues", ("name",)):
        nominal, of_nodes = row.number("nominal"), row.number("nodes")
        if nominal is None and of_nodes is not None:
            nominal = of_nodes * node_gpus
        rules = {what: row.word(what).lower().replace("_", "-") or "never" for what in ("reclaim", "within")}
        for what, known in (("reclaim", ("never", "lower-priority", "any")), ("within", ("never", "lower-priority"))):
            rules[what] = rules[what].replace("lowerpriority", "lower-priority")
            if rules[what] not in known:
                raise row.wrong(what, rules[what], f"is not known; use {', '.join(known)}")
        queues.append(
            QueueQuota(
                name=row.word("name"), parent=row.word("parent"), nominal=_milli(nominal),
                borrowing=_milli(row.number("borrowing")), lending=_milli(row.number("lending")),
                weight=1.0 if (weight := row.number("weight")) is None else weight, where=f"{path.name} line {row.line}: ",
                **cast(Any, rules),
            )
        )  # fmt: skip
    return queues


def _milli(cards: float | None) -> int | None:
    return None if cards is None else round(cards * WHOLE)


def _rows(path: Path, kind: str, *needed: tuple[str, ...]) -> Iterator[TableRow]:
    columns = None
    with open_text(path, f"list of {kind}") as file:
        try:
            head = file.read(4096)
            file.seek(0)
        except (UnicodeDecodeError, EOFError, OSError) as error:
            raise InputError(f"{path.name} cannot be read as text ({shorten(str(error))}); give a table") from None
        first = head.partition("\n")[0]
        delimiter = "|" if first.count("|") > first.count(",") else "," if "," in first or "\t" not in first else "\t"
        for line, values in read_rows(file, path, delimiter):
            if columns is None:
                columns = TableColumns(kind, values, path)
                for any_of in needed:
                    columns.need(*any_of)
            yield columns.row(line, values)
