"""Workloads of Kueue and pod groups of KAI as rows of tables: what is asked for, when it came, began and ended, and where."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trilemma.errors import InputError
from trilemma.simulation.cluster.foreign_files import part, parts
from trilemma.simulation.cluster.manifests import GPU_RESOURCES, level_of_label
from trilemma.simulation.cluster.nodes import WHOLE

#: Annotations by which KAI's pods name their group and the share of a card that they take (KAI-Scheduler, docs).
_GROUP, _FRACTION = "pod-group-name", "gpu-fraction"
_REQUIRED, _PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"

Row = dict[str, Any]


def job_rows(objects: Sequence[Mapping[str, Any]], path: Path) -> Iterator[Row]:
    """Jobs among ``objects``. Raises `InputError` where there are none."""
    found = False
    for one in objects:
        if one.get("kind") == "Workload":
            found = True
            yield _workload(one)
    groups = {_name(one): one for one in objects if one.get("kind") == "PodGroup"}
    if groups:
        found = True
        yield from _pod_groups(groups, objects)
    if not found:
        raise InputError(
            f"{path.name} holds no Workload or PodGroup; give kubectl get workloads -A -o json, or a snapshot of KAI"
        )


def _workload(one: Mapping[str, Any]) -> Row:
    """A Workload of Kueue (kueue.x-k8s.io, spec.podSets, status.conditions)."""
    spec, status = part(one, "spec"), part(one, "status")
    sizes: Counter[int] = Counter()
    within, strict = "", ""
    for pods in parts(spec, "podSets"):
        sizes[pod_gpus(part(pods, "template"))] += _count(pods.get("count"), 1)
        asked = part(pods, "topologyRequest")
        marks = part(part(part(pods, "template"), "metadata"), "annotations")
        required, preferred = (
            asked.get("required") or marks.get(_REQUIRED),
            asked.get("preferred") or marks.get(_PREFERRED),
        )
        within, strict = level_of_label(str(required or preferred or "")) or within, "yes" if required else strict
    pods_, each = _evenly(sizes)
    times = {str(_of.get("type")): _of for _of in parts(status, "conditions")}
    admitted, finished = (_time(times.get(name)) for name in ("Admitted", "Finished"))
    return _row(
        name=_name(one), queue=str(spec.get("queueName") or ""), priority=spec.get("priority") or 0, pods=pods_, each=each,
        submit=part(one, "metadata").get("creationTimestamp"), start=admitted, end=finished, within=within, required=strict,
    )  # fmt: skip


def _pod_groups(groups: Mapping[str, Mapping[str, Any]], objects: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Groups of KAI with their pods: queue and priority of the group, cards and nodes of the pods."""
    values = {_name(one): one.get("value") for one in objects if one.get("kind") == "PriorityClass"}
    members: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in objects:
        if one.get("kind") == "Pod":
            members[str(part(one, "metadata", "annotations").get(_GROUP) or "")].append(one)
    for name, group in groups.items():
        spec, pods = part(group, "spec"), members.get(name, [])
        sizes = Counter(pod_gpus(one) for one in pods)
        shares = [part(one, "metadata", "annotations").get(_FRACTION) for one in pods]
        share = next((_share(one) for one in shares if one), WHOLE)
        if share < WHOLE:
            sizes = Counter({1: len(pods)})
        running = [one for one in pods if part(one, "spec").get("nodeName")]
        start = min((str(part(one, "status").get("startTime") or "") for one in running), default="")
        pods_, each = _evenly(sizes)
        fewest = _count(spec.get("minMember"), 0)
        yield _row(
            name=name, queue=str(spec.get("queue") or ""), priority=values.get(str(spec.get("priorityClassName"))) or 0,
            pods=pods_, each=each, submit=part(group, "metadata").get("creationTimestamp"),
            start=start if pods and len(running) == len(pods) else "", end="", fewest=fewest, milli=share,
            nodes=",".join(str(part(one, "spec").get("nodeName")) for one in running),
        )  # fmt: skip


def _row(
    *, name: str, queue: str, priority: Any, pods: int, each: int, submit: Any, start: Any, end: Any, within: str = "",
    required: str = "", fewest: int = 0, milli: int = WHOLE, nodes: str = "",
) -> Row:  # fmt: skip
    state = "COMPLETED" if end else "RUNNING" if start else "PENDING"
    return {
        "job": name, "queue_name": queue, "priority": priority, "gpus": pods * each, "pods": pods, "submit": submit or "",
        "start": start or "", "end": end or "", "within": within, "required": required, "state": state,
        "min_pods": fewest if 0 < fewest < pods else 0, "gpu_milli": milli if each == 1 else WHOLE, "NodeList": nodes,
    }  # fmt: skip


def _evenly(sizes: Counter[int]) -> tuple[int, int]:
    """Pods of one size that make the cards of pods of several; pods without cards are left out where others have some."""
    with_cards = {size: many for size, many in sizes.items() if size}
    if not with_cards:
        return max(sum(sizes.values()), 1), 0
    each = math.gcd(*with_cards)
    return sum(size // each * many for size, many in with_cards.items()), each


def pod_gpus(pod: Mapping[str, Any]) -> int:
    """GPUs that the containers of a pod ask for."""
    found = 0
    for one in parts(part(pod, "spec"), "containers"):
        resources = part(one, "resources")
        asked = {**part(resources, "limits"), **part(resources, "requests")}
        found += next((_count(asked[name], 0) for name in GPU_RESOURCES if name in asked), 0)
    return found


def _count(value: Any, default: int) -> int:
    """A whole number of at most a billion; ``default`` where it is none."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 10 else default


def _share(words: object) -> int:
    try:
        value = float(str(words))
    except ValueError:
        return WHOLE
    return min(max(round(value * WHOLE), 1), WHOLE) if math.isfinite(value) else WHOLE


def _time(condition: Mapping[str, Any] | None) -> str:
    return str(condition.get("lastTransitionTime") or "") if condition and condition.get("status") == "True" else ""


def _name(one: Mapping[str, Any]) -> str:
    return str(part(one, "metadata").get("name") or "")
