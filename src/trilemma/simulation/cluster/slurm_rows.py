"""Slurm's own words as rows of tables: ``squeue``, ``sacct`` and ``scontrol`` as JSON, ``scontrol show`` as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten

_PAIR = re.compile(r"(?:^|\s)([A-Z]\w{0,40})=(\S*)")
_GRES = re.compile(r"(?:^|,)gpu(?::([\w.-]+?))?:(\d+)(?=[(,:]|$)")
_RANGE = re.compile(r"([^\[\],]*)\[([\d,-]*)\]")
#: Nodes of one list, of all lists of a file, and digits of a number.
_MOST_NODES, MOST_NAMES, _DIGITS = 200_000, 2_000_000, 15
#: States of nodes that run nothing new (scontrol(1), node states).
_DOWN = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "NOT_RESPONDING", "NO_RESPOND"}

Row = dict[str, Any]


def job_rows(document: Mapping[str, Any], path: Path) -> Iterator[Row]:
    """Jobs of ``squeue --json``, ``sacct --json`` or slurmrestd. Raises `InputError` where there are none."""
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise InputError(f"{path.name} holds no job; give squeue --json or sacct --json")
    for one in jobs:
        if isinstance(one, Mapping):
            yield _accounted(one) if isinstance(one.get("time"), Mapping) else _queued(one)


def _queued(job: Mapping[str, Any]) -> Row:
    limit = _number(job.get("time_limit"))
    return {
        "JobID": _number(job.get("job_id")), "Submit": _number(job.get("submit_time")),
        "Start": _number(job.get("start_time")) or "", "End": _number(job.get("end_time")) or "",
        "Timelimit": "" if limit is None else limit * 60, "Partition": _word(job, "partition"),
        "User": _word(job, "user_name"), "State": _state(job.get("job_state")), "NodeList": _word(job, "nodes"),
        "AllocTRES": _word(job, "tres_alloc_str") or _word(job, "tres_req_str"), "ElapsedRaw": "",
        "command": "", "qos": _word(job, "qos"),
    }  # fmt: skip


def _accounted(job: Mapping[str, Any]) -> Row:
    time, tres, named = job["time"], job.get("tres"), job.get("association")
    limit = _number(time.get("limit"))
    counts = (tres.get("allocated") or tres.get("requested")) if isinstance(tres, Mapping) else None
    state = job.get("state")
    started = _number(time.get("start"))
    return {
        "JobID": _number(job.get("job_id")), "Submit": _number(time.get("submission")), "Start": started or "",
        "End": _number(time.get("end")) or "", "Timelimit": "" if limit is None else limit * 60,
        "Partition": _word(job, "partition"),
        "User": _word(job, "user") or (_word(named, "user") if isinstance(named, Mapping) else ""),
        "State": _state(state.get("current") if isinstance(state, Mapping) else state), "NodeList": _word(job, "nodes"),
        "AllocTRES": _tres(counts), "ElapsedRaw": _number(time.get("elapsed")) if started else "",
        "command": "", "qos": _word(job, "qos"),
    }  # fmt: skip


def node_rows(document: Mapping[str, Any], path: Path) -> Iterator[Row]:
    """Nodes of ``scontrol show nodes --json`` or slurmrestd. Raises `InputError` where there are none."""
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        raise InputError(f"{path.name} holds no node; give scontrol show nodes --json")
    for one in nodes:
        if isinstance(one, Mapping):
            states = [_state(one.get("state"), every=True), _state(one.get("state_flags"), every=True)]
            yield _node(
                _word(one, "name"), _word(one, "gres"), _number(one.get("cpus")), _number(one.get("real_memory")),
                _number(one.get("sockets")), "+".join(states),
            )  # fmt: skip


def scontrol_nodes(text: str, path: Path) -> Iterator[Row]:
    """Nodes of ``scontrol show nodes``, a block or a line (``-o``) each."""
    found = False
    for block in re.split(r"(?m)^(?=NodeName=)", text):
        pairs = dict(_PAIR.findall(block))
        if "NodeName" in pairs:
            found = True
            numbers = {name: pairs.get(name, "") for name in ("CPUTot", "RealMemory", "Sockets")}
            cpus, memory, sockets = (int(one[:_DIGITS]) if one.isdecimal() else None for one in numbers.values())
            yield _node(pairs["NodeName"], pairs.get("Gres", ""), cpus, memory, sockets, pairs.get("State", ""))
    if not found:
        raise InputError(f"{path.name} holds no NodeName=; give scontrol show nodes")


def scontrol_jobs(text: str, path: Path) -> Iterator[Row]:
    """Jobs of ``scontrol show jobs``."""
    found = False
    for block in re.split(r"(?m)^(?=JobId=)", text):
        pairs = dict(_PAIR.findall(block))
        if "JobId" not in pairs:
            continue
        found = True
        yield {
            "JobID": pairs["JobId"], "Submit": pairs.get("SubmitTime", ""), "Start": pairs.get("StartTime", ""),
            "End": pairs.get("EndTime", ""), "Timelimit": pairs.get("TimeLimit", ""), "Partition": pairs.get("Partition", ""),
            "User": pairs.get("UserId", "").partition("(")[0], "State": pairs.get("JobState", ""),
            "NodeList": pairs.get("NodeList", ""),
            "AllocTRES": pairs.get("AllocTRES") or pairs.get("ReqTRES") or pairs.get("TRES", ""),
            "ElapsedRaw": "", "command": "", "qos": pairs.get("QOS", ""),
        }  # fmt: skip
    if not found:
        raise InputError(f"{path.name} holds no JobId=; give scontrol show jobs")


def host_names(words: str) -> tuple[str, ...]:
    """``n[01-03,7],m1`` as names of nodes. Raises `InputError` beyond 200,000 of them."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]+|\[[^\]]*\])+", words):
        found += _expanded(part)
        if len(found) > _MOST_NODES:
            raise InputError(f"{shorten(words, most=60)!r} names more than {_MOST_NODES:,} nodes; give fewer")
    return tuple(found)


def _expanded(word: str) -> list[str]:
    found = _RANGE.match(word)
    if found is None:
        return [word]
    rest = _expanded(word[found.end() :]) if found.end() < len(word) else [""]
    names = []
    for span in found[2].split(","):
        first, _, last = span.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or len(span) > 2 * _DIGITS:
            continue
        ends = int(last or first)
        if (ends - int(first) + 1) * len(rest) > _MOST_NODES:
            raise InputError(f"{shorten(word, most=60)!r} names more than {_MOST_NODES:,} nodes; give fewer")
        names += [f"{found[1]}{at:0{len(first)}d}{one}" for at in range(int(first), ends + 1) for one in rest]
    return names


def _node(name: str, gres: str, cpus: float | None, memory: float | None, sockets: float | None, state: str) -> Row:
    cards = _GRES.findall(gres.replace("gres/", ""))
    many = sum(int(one[:_DIGITS]) for _, one in cards)
    sockets = int(sockets or 1)
    words = set(re.split(r"[+*~#!%$@^-]+", state.upper()))
    return {
        "name": name, "gpus": many, "model": next((kind for kind, _ in cards if kind), ""), "cpu_milli": int((cpus or 0) * 1000),
        "memory_mib": int(memory or 0), "sockets": sockets if many and not many % sockets else 1,
        "down": "yes" if words & _DOWN else "no",
    }  # fmt: skip


def _number(value: Any) -> float | None:
    """A number as it stands, or in the object of newer versions (``set``, ``infinite``, ``number``)."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _state(value: Any, *, every: bool = False) -> str:
    words = value if isinstance(value, list) else [value]
    found = [str(one).upper() for one in words if isinstance(one, str)]
    return "+".join(found if every else found[:1])


def _word(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return value[:65536] if isinstance(value, str) else ""


def _tres(counts: Any) -> str:
    """``[{type: gres, name: gpu, count: 8}]`` as ``gres/gpu=8``."""
    parts = []
    for one in counts if isinstance(counts, list) else ():
        count = _number(one.get("count")) if isinstance(one, Mapping) else None
        if count is not None:
            name = f"/{one['name']}" if isinstance(one.get("name"), str) and one["name"] else ""
            parts.append(f"{one.get('type')}{name}={int(count)}")
    return ",".join(parts)
