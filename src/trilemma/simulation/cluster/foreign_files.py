"""Files of schedulers, told by what is in them: JSON of Slurm, Kubernetes and Ray, KAI's snapshots, text of ``scontrol show``."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trilemma.commands.bounded_yaml import load_all
from trilemma.errors import InputError, shorten
from trilemma.outside_files import BROKEN, read_text, reason, unpacked

_MOST_BYTES, _MOST_YAML_BYTES = 512 * 2**20, 64 * 2**20
_ZIP = b"PK\x03\x04"
_SCONTROL = re.compile(r"\s*(?:scontrol create reservation )?(NodeName|JobId|ReservationName)=\S")
#: Lists of a KAI snapshot that hold what is read here → the kind of their objects (snapshot.go, RawKubernetesObjects).
_SNAPSHOT = {
    "nodes": ("v1", "Node"), "queues": ("scheduling.run.ai/v2", "Queue"), "podGroups": ("scheduling.run.ai/v2alpha2", "PodGroup"),
    "pods": ("v1", "Pod"), "priorityClasses": ("scheduling.k8s.io/v1", "PriorityClass"),
    "topologies": ("kueue.x-k8s.io/v1alpha1", "Topology"),
}  # fmt: skip
_SLURM_LISTS = ("jobs", "nodes", "partitions", "reservations")

Dialect = Literal["slurm", "scontrol", "kubernetes", "ray", "table"]


class ForeignFile(NamedTuple):
    """``dialect`` says what ``content`` is: a document of Slurm, text of scontrol, objects of Kubernetes, or lists of Ray."""

    dialect: Dialect
    content: Any


def open_foreign(path: Path) -> ForeignFile:
    """What a file is, and what is in it unless it is a table. Raises `InputError` where it cannot be read."""
    if path.suffix in (".yaml", ".yml"):
        documents = list(load_all(read_text(path, most_bytes=_MOST_YAML_BYTES), name=path.name))
        if any(map(is_launcher, documents)):
            return ForeignFile("ray", documents)
        return ForeignFile("kubernetes", list(_objects(documents)))
    head = _read(path, 2**16)
    if head[:4] == _ZIP:
        return ForeignFile("kubernetes", list(_snapshot(path)))
    text = _text(head, path, whole=False)
    if _SCONTROL.match(text):
        return ForeignFile("scontrol", _text(_read(path, _MOST_BYTES), path, whole=True))
    if text.lstrip()[:1] not in ("{", "["):
        return ForeignFile("table", None)
    if _is_row(text):
        return ForeignFile("table", None)
    return _told(_json(_text(_read(path, _MOST_BYTES), path, whole=True), path), path)


def part(one: Any, *names: str) -> Mapping[str, Any]:
    """The object under ``names``, one in the other; an empty one where there is none."""
    for name in names:
        one = one.get(name) if isinstance(one, Mapping) else None
    return one if isinstance(one, Mapping) else {}


def parts(one: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of a list; none where it is no list."""
    found = one.get(name)
    return [of for of in found if isinstance(of, Mapping)] if isinstance(found, list) else []


def amount(value: Any, what: str, path: Path) -> float:
    """A number of at most 1e15 either way. Raises `InputError` where it is none."""
    try:
        found = float(str(value))
    except ValueError:
        found = math.nan
    if not abs(found) <= 1e15:
        raise InputError(f"{path.name}: {what} {shorten(str(value), most=40)!r} is no number that can be; mend it")
    return found


def is_listing(document: Any) -> bool:
    """Whether JSON is a list that Ray prints."""
    first = document[0] if isinstance(document, list) and document else None
    names = ("resources_total", "placement_group_id", "driver_node_id", "driver_info", "entrypoint")
    return isinstance(first, Mapping) and any(name in first for name in names) and "kind" not in first


def is_launcher(document: Any) -> bool:
    """Whether YAML is that of the cluster launcher."""
    return isinstance(document, Mapping) and isinstance(document.get("available_node_types"), Mapping)


def _told(document: Any, path: Path) -> ForeignFile:
    if isinstance(document, Mapping) and isinstance(document.get("rawObjects"), Mapping):
        return ForeignFile("kubernetes", list(_raw_objects(document["rawObjects"])))
    if isinstance(document, Mapping) and any(isinstance(document.get(name), list) for name in _SLURM_LISTS):
        return ForeignFile("slurm", document)
    if is_listing(document):
        return ForeignFile("ray", document)
    objects = list(_objects(document if isinstance(document, list) else [document]))
    if any(one.get("kind") for one in objects):
        return ForeignFile("kubernetes", objects)
    raise InputError(
        f"{shorten(path.name)} is JSON of neither Slurm (jobs, nodes), Kubernetes (kind, items) nor Ray; give such a file, or a"
        " table"
    )


def _is_row(text: str) -> bool:
    """Whether the first line is a whole object that no scheduler writes: JSON lines."""
    first, ending, _ = text.lstrip().partition("\n")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return False
    known = isinstance(row, Mapping) and any(name in row for name in ("rawObjects", "kind", "items", *_SLURM_LISTS))
    return isinstance(row, Mapping) and (
        not known or (bool(ending) and not isinstance(next(iter(row.values()), None), list | dict))
    )


def _objects(documents: Any) -> Iterator[Mapping[str, Any]]:
    for document in documents:
        if isinstance(document, Mapping) and str(document.get("kind", "")).endswith("List"):
            yield from parts(document, "items")
        elif isinstance(document, Mapping):
            yield document


def _snapshot(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with zipfile.ZipFile(path) as packed:
            names = [one for one in packed.infolist() if one.filename == "snapshot.json"]
            if not names:
                raise InputError(f"{path.name} holds no snapshot.json; give a snapshot of KAI, or its JSON")
            if names[0].file_size > _MOST_BYTES:
                raise InputError(f"{path.name}: its snapshot is larger than {_MOST_BYTES >> 20} MiB; give a part of it")
            with packed.open(names[0]) as file:
                data = file.read(_MOST_BYTES + 1)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise InputError(f"{path.name} cannot be unpacked ({shorten(str(error))}); give a whole file") from None
    document = _json(_text(data, path, whole=True), path)
    raw = document.get("rawObjects") if isinstance(document, Mapping) else None
    if not isinstance(raw, Mapping):
        raise InputError(f"{path.name}: its snapshot.json has no rawObjects; give a snapshot of KAI")
    yield from _raw_objects(raw)


def _raw_objects(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The objects of a snapshot with the kind that lists leave out."""
    for name, (group, kind) in _SNAPSHOT.items():
        found = raw.get(name)
        for one in found if isinstance(found, list) else ():
            if isinstance(one, Mapping):
                yield {**one, "kind": kind, "apiVersion": group}


def _read(path: Path, most: int) -> bytes:
    try:
        with unpacked(path) as file:
            data = file.read(most + 1)
    except (*BROKEN, ValueError) as error:
        told = reason(error) if getattr(error, "strerror", None) or isinstance(error, ValueError) else "it is damaged"
        raise InputError(f"{shorten(str(path))} cannot be read: {told}; give a file of jobs, nodes or queues") from None
    if len(data) > most == _MOST_BYTES:
        raise InputError(f"{shorten(path.name)} is larger than {_MOST_BYTES >> 20} MiB; give a part of it")
    return data


def _text(data: bytes, path: Path, *, whole: bool) -> str:
    try:
        return data.decode("utf-8-sig", errors="strict" if whole else "ignore")
    except UnicodeDecodeError:
        raise InputError(f"{shorten(path.name)} is not UTF-8 text; give a table, YAML or JSON") from None


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{shorten(path.name)} is not readable JSON ({shorten(str(error))}); give the whole file"
        ) from None
