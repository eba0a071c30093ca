"""Jobs, nodes and queues from tables (Philly, Helios, Acme, openb, ``sacct``, one's own: by their columns), and of schedulers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from trilemma.errors import InputError, shorten
from trilemma.outside_files import BROKEN
from trilemma.simulation.cluster import kubernetes_rows, ray_rows, slurm_rows
from trilemma.simulation.cluster.cells import TableColumns, TableRow
from trilemma.simulation.cluster.foreign_files import ForeignFile, open_foreign
from trilemma.simulation.cluster.jobs import ClusterJob, GangShape, gang_of, ticks
from trilemma.simulation.cluster.manifests import read_node_manifests, read_queue_manifests
from trilemma.simulation.cluster.mig import memory_slices, slice_shape
from trilemma.simulation.cluster.nodes import WHOLE, ClusterNode
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.cluster.slurm_rows import host_names
from trilemma.simulation.cluster.slurm_topology import read_reservations
from trilemma.simulation.row_files import open_text, read_rows

#: States of jobs that are not over (sacct(1), squeue(1): job state codes).
_WAITS = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING")
RUNS = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "STAGE_OUT", "SIGNALING")
STILL = (*_WAITS, *RUNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDefaults:
    """What jobs are taken to be where their file does not say: checkpoints and starting again in seconds, apart or not, and the
    cards of nodes that do not name theirs."""

    checkpoint_s: float | None = None
    restart_s: float = 0.0
    divisible: bool = False
    card: str = ""


def read_jobs(path: Path, nodes: Sequence[ClusterNode], defaults: JobDefaults) -> list[ClusterJob]:
    """The jobs of a table, of Slurm or of Kubernetes in the order of their submission, the first at 0 s; all at 0 s where it does
    not say when they come. Raises `InputError` that names a bad line."""
    return read_dated_jobs(path, nodes, defaults)[0]


def read_dated_jobs(path: Path, nodes: Sequence[ClusterNode], defaults: JobDefaults) -> tuple[list[ClusterJob], float]:
    """The same, and the time of the first in seconds as the file counts them."""
    largest = max((one.gpus for one in nodes), default=0)
    known = {one.model for one in nodes if one.model}
    with_cpus = any(one.cpu_milli for one in nodes)
    found: list[tuple[float, ClusterJob, SeenTimes]] = []
    for row in _rows(path, "jobs", ("gpus", "tres", "pods", "cpu_milli")):
        if row.word("name").count(".") and row.columns.found["tres"]:
            continue  # a step of a Slurm job
        seen = seen_times(row)
        if seen.never_began:
            continue
        submit = row.seconds("submit") if row.columns.found["submit"] else 0.0
        if submit is None:
            raise row.error("it has no time of submission; give one, or leave the line out")
        shape = _shape(row, largest, known, defaults, with_cpus=with_cpus)
        work = _work(row, submit, seen)
        try:
            job = _job(row, shape, work, defaults, len(found))
        except InputError as error:
            raise row.at_line(error) from None
        found.append((submit, job, seen))
    if not found:
        raise InputError(f"{path.name} holds no job; give a table with a header and a line a job")
    first = min(submit for submit, _, _ in found)
    jobs = [
        replace(
            job, submit_ticks=ticks(submit - first), state=seen.state,
            start_ticks=None if seen.start is None else ticks(max(seen.start, submit) - first),
            end_ticks=None if seen.end is None else ticks(max(seen.end, submit) - first),
        )
        for submit, job, seen in found
    ]  # fmt: skip
    return sorted(jobs, key=lambda one: one.submit_ticks), first


class SeenTimes(NamedTuple):
    """The state that a job was last seen in, in capitals, and seconds at which it was seen to begin and to end."""

    state: str
    start: float | None
    end: float | None
    never_began: bool


def seen_times(row: TableRow) -> SeenTimes:
    """What a row says happened. Queues tell when waiting jobs are expected to start and running ones to end: not seen."""
    state = row.word("state").upper().partition(" ")[0].partition("+")[0]
    start, end = row.seconds("start"), row.seconds("end")
    if state in _WAITS:
        return SeenTimes(state, None, None, never_began=False)
    if state in RUNS:
        return SeenTimes(state, start, None, never_began=False)
    never = state.startswith("CANCELLED") and (start is None or not (row.seconds("duration") or end))
    if start is not None and end is None and (duration := row.seconds("duration")) is not None:
        end = start + duration
    return SeenTimes(state, start, end, never_began=never)


def _cards_of(words: str, known: set[str], defaults: JobDefaults) -> Iterable[str]:
    """The cards that a slice may be of: those a job names, or those of the nodes."""
    return words.split("|") if words else known - {""} or {defaults.card}


def _shape(row: TableRow, largest: int, known: set[str], defaults: JobDefaults, *, with_cpus: bool) -> GangShape:
    """What a job asks for; the kind of card that Slurm counted binds where a node is of that kind."""
    of_tres, kind = row.tres_gpus()
    gpus = row.whole("gpus", of_tres)
    milli = row.whole("gpu_milli", WHOLE) or WHOLE
    words = row.word("models")
    profile = row.word("mig").removeprefix("nvidia.com/mig-")
    if profile:
        gpus = gpus or max(row.whole("pods", 1), 1)
    within = row.word("within")
    try:
        sliced = slice_shape(profile, _cards_of(words, known, defaults)) if profile else None
        shape = GangShape(
            gpus=0 if gpus == 0 else 1,
            gpu_milli=WHOLE * sliced.memory // memory_slices() if sliced else milli if gpus == 1 else WHOLE,
            slices=sliced.memory if sliced else 0,
            slice_starts=sliced.starts if sliced else (),
            cpu_milli=row.whole("cpu_milli", row.tres_cpus() * WHOLE if with_cpus and not gpus else 0),
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
        if sliced:
            return replace(shape, pods=gpus)
        return shape if gpus <= 1 else gang_of(gpus, largest, shape)
    except InputError as error:
        raise row.at_line(error) from None


def _work(row: TableRow, submit: float, seen: SeenTimes) -> int | None:
    """Ticks of work: as stated, else from start to end, of jobs that are not over what they may take; None where nobody knows."""
    if seen.state in STILL:
        limit = row.limit_s()
        return None if limit is None else ticks(limit)
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
    limit = row.limit_s()
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
        where=row.where,
        on_nodes=host_names(row.word("on_nodes")),
    )


def read_nodes(path: Path) -> list[ClusterNode]:
    """The nodes of a table, of ``scontrol show nodes`` or of ``kubectl get nodes``."""
    foreign = open_foreign(path)
    if foreign.dialect == "kubernetes" and not any(one.get("kind") == "RayCluster" for one in foreign.content):
        return read_node_manifests(path)
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
                    sockets=row.whole("sockets", 1), one_socket=row.truth("one_socket"), is_down=row.truth("down"), **domains,
                )
            )  # fmt: skip
        except InputError as error:
            raise row.at_line(error) from None
    if not nodes:
        raise InputError(f"{path.name} holds no node; give a table with a header and a line a node")
    return nodes


def read_queues(path: Path, node_gpus: int) -> list[QueueQuota]:
    """The queues of a table, quotas in GPUs or in nodes of ``node_gpus``; of Kueue, KAI or Volcano; or Slurm's reservations."""
    dialect = open_foreign(path).dialect
    if dialect != "table":
        return read_queue_manifests(path) if dialect == "kubernetes" else read_reservations(path, node_gpus)
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
                weight=1.0 if (weight := row.number("weight")) is None else weight, where=f"{row.where}: ",
                **cast(Any, rules),
            )
        )  # fmt: skip
    return queues


def _milli(cards: float | None) -> int | None:
    return None if cards is None else round(cards * WHOLE)


def _rows(path: Path, kind: str, *needed: tuple[str, ...]) -> Iterator[TableRow]:
    """Rows of a table, or what a scheduler's file says as such."""
    foreign = open_foreign(path)
    values: Iterator[tuple[int, Mapping[str, Any]]]
    if foreign.dialect == "table":
        values, unit = _table_rows(path, kind), "line"
    else:
        values, unit = enumerate(_foreign_rows(foreign, kind, path), 1), "entry"
    columns = None
    for line, row in values:
        if columns is None:
            columns = TableColumns(kind, row, path, unit)
            for any_of in needed:
                columns.need(*any_of)
        yield columns.row(line, row)


def _foreign_rows(foreign: ForeignFile, kind: str, path: Path) -> Iterator[Mapping[str, Any]]:
    of_slurm = {"jobs": slurm_rows.job_rows, "nodes": slurm_rows.node_rows}
    of_scontrol = {"jobs": slurm_rows.scontrol_jobs, "nodes": slurm_rows.scontrol_nodes}
    if foreign.dialect == "slurm" and kind in of_slurm:
        return of_slurm[kind](foreign.content, path)
    if foreign.dialect == "scontrol" and kind in of_scontrol:
        return of_scontrol[kind](foreign.content, path)
    of_ray = {"jobs": ray_rows.job_rows, "nodes": ray_rows.node_rows}
    if foreign.dialect == "ray" and kind in of_ray:
        return of_ray[kind](foreign.content, path)
    if foreign.dialect == "kubernetes" and kind == "jobs":
        submitted = [ray_rows.kube_job(one) for one in foreign.content if one.get("kind") == "RayJob"]
        return iter(submitted) if submitted else kubernetes_rows.job_rows(foreign.content, path)
    if foreign.dialect == "kubernetes" and kind == "nodes":
        return ray_rows.node_rows(foreign.content, path)
    raise InputError(f"{path.name} holds no {kind}; give a table of {kind}, or such objects of Kueue, KAI or Ray")


def _table_rows(path: Path, kind: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open_text(path, f"list of {kind}") as file:
        try:
            head = file.read(4096)
            file.seek(0)
        except (UnicodeDecodeError, *BROKEN) as error:
            raise InputError(f"{path.name} cannot be read as text ({shorten(str(error))}); give a table") from None
        first = head.partition("\n")[0]
        delimiter = "|" if first.count("|") > first.count(",") else "," if "," in first or "\t" not in first else "\t"
        yield from read_rows(file, path, delimiter)
