"""Slurm's topology, both ways: nodes with their domains as topology.conf and topology.yaml, queues as reservations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trilemma.commands.bounded_yaml import load_all
from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text
from trilemma.simulation.cluster.foreign_files import part, parts
from trilemma.simulation.cluster.nodes import LEVELS, WHOLE, ClusterNode, levels_of
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.cluster.slurm_rows import MOST_NAMES, host_names

_MOST_BYTES, _MOST_HEIGHT = 64 * 2**20, 64
#: Names of nodes and switches that Slurm reads as one word.
_SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,254}")
_SWITCH = re.compile(r"SwitchName=(\S+)(?:\s+(Nodes|Switches)=(\S+))?", re.IGNORECASE)
_LEVEL = re.compile(r"#\s*level\s+(\w+)")
#: Levels that switches stand for where no comment says it, from those with nodes up.
_USUAL = ("leaf", "rack", "block")

#: A switch: its children, which are nodes where ``of_nodes``, and the level that it is said to be.
Switches = dict[str, tuple[tuple[str, ...], bool, str]]


def topology_conf(nodes: Sequence[ClusterNode]) -> str:
    """topology.conf of topology/tree: a switch a domain, and one above all. A comment tells the level that switches are."""
    lines, level = [], ""
    for name, (children, of_nodes, of) in switches_of(nodes).items():
        if of != level:
            lines.append(f"# level {of}" if of else "# above all")
            level = of
        _as_slurm_reads(name, *children)
        lines.append(f"SwitchName={name} {'Nodes' if of_nodes else 'Switches'}={','.join(children)}")
    return "\n".join([*lines, ""])


def topology_yaml(nodes: Sequence[ClusterNode]) -> str:
    """topology.yaml (Slurm 25.05): the tree, and beside it blocks where nodes state NVLink domains of one size or more."""
    named = switches_of(nodes)
    _as_slurm_reads(*named, *(child for children, _, _ in named.values() for child in children))
    switches = [
        {"switch": name, "nodes" if of_nodes else "children": ",".join(children)}
        for name, (children, of_nodes, _) in named.items()
    ]
    told: list[dict[str, Any]] = [{"topology": "tree", "cluster_default": True, "tree": {"switches": switches}}]
    if "nvlink" in levels_of(nodes):
        blocks = {name: children for name, (children, of_nodes, of) in named.items() if of == "nvlink" and of_nodes}
        listed = [{"block": name, "nodes": ",".join(children)} for name, children in blocks.items()]
        size = min(map(len, blocks.values()))
        told.append({"topology": "block", "cluster_default": False, "block": {"block_sizes": [size], "blocks": listed}})
    levels = "".join(f"# level {level}\n" for level in levels_of(nodes))
    return levels + yaml.safe_dump(told, sort_keys=False)


def reservations(queues: Sequence[QueueQuota], node_gpus: int) -> str:
    """``scontrol create reservation`` of the whole nodes that queues own: they lend nothing."""
    lines = []
    for one in queues:
        if one.is_cohort or one.alias or not one.nominal:
            continue
        if one.nominal % (node_gpus * WHOLE):
            raise InputError(
                f"queue {shorten(one.name, most=40)} owns {one.nominal / WHOLE:g} GPUs, which are no whole nodes of {node_gpus}:"
                " Slurm reserves nodes; give a multiple"
            )
        _as_slurm_reads(one.name)
        many = one.nominal // (node_gpus * WHOLE)
        lines.append(
            f"scontrol create reservation ReservationName={one.name} Accounts={one.name} NodeCnt={many} StartTime=now"
            " Duration=UNLIMITED Flags=IGNORE_JOBS"
        )
    return "\n".join([*lines, ""])


def _as_slurm_reads(*names: str) -> None:
    """Raises `InputError` for a name that Slurm, or the shell before it, would read as something else."""
    for name in names:
        if not _SLURM_NAME.fullmatch(name):
            raise InputError(
                f"{shorten(name, most=40)!r} is no name for Slurm; rename it with letters, digits, and . _ - alone"
            )


def read_reservations(path: Path, node_gpus: int) -> list[QueueQuota]:
    """The queues that own nodes by reservation, of ``scontrol create`` lines or ``scontrol show reservations``."""
    found = []
    for block in re.split(r"(?m)^(?=.*ReservationName=)", read_text(path, most_bytes=_MOST_BYTES)):
        pairs = dict(re.findall(r"(\w+)=(\S*)", block))
        if "ReservationName" in pairs and re.fullmatch(r"[0-9]{1,9}", pairs.get("NodeCnt", "")):
            found.append(
                QueueQuota(
                    name=pairs["ReservationName"], nominal=int(pairs["NodeCnt"]) * node_gpus * WHOLE, lending=0,
                    where=f"{path.name}: ",
                )
            )  # fmt: skip
    if not found:
        raise InputError(f"{path.name} holds no reservation of nodes; give scontrol show reservations")
    return found


def with_topology(nodes: Sequence[ClusterNode], path: Path) -> list[ClusterNode]:
    """``nodes`` with the domains of a topology.conf, a topology.yaml, or HyperNodes of Volcano. Raises `InputError`."""
    text = read_text(path, most_bytes=_MOST_BYTES)
    if _SWITCH.search(text):
        switches = _of_conf(text)
    else:
        documents = load_all(text, name=path.name)
        listed = documents[0] if len(documents) == 1 and isinstance(documents[0], list) else None
        switches = _of_hyper_nodes(documents) if listed is None else _of_yaml(listed, _LEVEL.findall(text))
    if not switches:
        raise InputError(
            f"{path.name} names no switch, block or HyperNode; give a topology.conf, topology.yaml or HyperNodes"
        )
    domains = _domains(switches)
    if domains.keys().isdisjoint(one.name for one in nodes):
        raise InputError(f"{path.name} places none of the nodes; give the topology of these nodes, by their names")
    return [replace(one, **domains.get(one.name, {})) for one in nodes]


def switches_of(nodes: Sequence[ClusterNode]) -> Switches:
    """A switch for every domain, the smallest first, and one above those of the largest."""
    levels = levels_of(nodes)
    found: Switches = {}
    names: dict[tuple[str, ...], str] = {}
    below: dict[tuple[str, ...], list[str]] = {}
    for at, level in enumerate(levels):
        children: dict[tuple[str, ...], list[str]] = {}
        for one in nodes:
            if not getattr(one, level):
                raise InputError(
                    f"node {shorten(one.name, most=40)} states no {level}, others do; a tree holds every node"
                )
            child = one.name if at == 0 else names[one.domain(levels[at - 1])]
            listed = children.setdefault(one.domain(level), [])
            if not listed or listed[-1] != child:
                listed.append(child)
        for domain, listed in children.items():
            name = domain[0]
            if name in found or name in {one.name for one in nodes}:
                name = ".".join(word for word in reversed(domain) if word)
            names[domain] = name
            found[name] = tuple(dict.fromkeys(listed)), at == 0, level
        below = children
    top = [names[domain] for domain in below]
    if len(top) != 1:
        found["above-all"] = (tuple(top) or tuple(one.name for one in nodes)), not top, ""
    return found


def _children(words: str, named: Counter[str]) -> tuple[str, ...]:
    """The names of a list, counted in ``named``. Raises `InputError` where all lists of a file together are too many."""
    names = host_names(words)
    named["all"] += len(names)
    if named["all"] > MOST_NAMES:
        raise InputError(f"switches name more than {MOST_NAMES:,} nodes and switches; give fewer")
    return names


def _of_conf(text: str) -> Switches:
    found: Switches = {}
    named: Counter[str] = Counter()
    level, stated = "", False
    for line in text.splitlines():
        said = _LEVEL.match(line.strip())
        if said is not None:
            level, stated = said[1], True
        elif line.strip().startswith("#"):
            level = ""
        elif (switch := _SWITCH.match(line.strip())) is not None and switch[2]:
            found[switch[1]] = _children(switch[3], named), switch[2].lower() == "nodes", level if stated else "?"
    return found


def _of_yaml(listed: Sequence[Any], levels: Sequence[str]) -> Switches:
    found: Switches = {}
    named: Counter[str] = Counter()
    for one in listed:
        for switch in parts(part(one, "tree"), "switches"):
            if switch.get("nodes") or switch.get("children"):
                words = str(switch.get("nodes") or switch.get("children"))
                found[str(switch.get("switch"))] = _children(words, named), bool(switch.get("nodes")), "?"
        for switch in () if found else parts(part(one, "block"), "blocks"):
            found[str(switch.get("block"))] = _children(str(switch.get("nodes") or ""), named), True, "nvlink"
    if levels and found:
        heights: dict[str, int] = {}
        for name in found:
            _height(name, found, heights, 0)
        found = {
            name: (children, of_nodes, levels[heights[name]] if heights[name] < len(levels) else "")
            for name, (children, of_nodes, level) in found.items()
        }
    return found


def _of_hyper_nodes(documents: Iterable[Any]) -> Switches:
    """HyperNodes of Volcano (topology.volcano.sh/v1alpha1): members by name, the level by ``tierName`` or the height."""
    found: Switches = {}
    for one in documents:
        if not isinstance(one, Mapping) or one.get("kind") != "HyperNode":
            continue
        spec = part(one, "spec")
        members = parts(spec, "members")
        names = tuple(str(part(of, "selector", "exactMatch").get("name") or "") for of in members)
        tier = str(spec.get("tierName") or "?")
        name = str(part(one, "metadata").get("name"))
        found[name] = (
            names,
            all(of.get("type") == "Node" for of in members),
            tier if tier in LEVELS else "?" if tier == "?" else "",
        )
    return found


def _domains(switches: Switches) -> dict[str, dict[str, Any]]:
    """Node → level → the switch above it there. What stands below two is placed by the one that is named last."""
    leaf = {node: name for name, (children, of_nodes, _) in switches.items() if of_nodes for node in children}
    above = {
        child: name
        for name, (children, of_nodes, _) in switches.items()
        if not of_nodes
        for child in children
        if child in switches
    }
    heights: dict[str, int] = {}
    for name in switches:
        _height(name, switches, heights, 0)
    chains = {name: _chain(name, above) for name in dict.fromkeys(leaf.values())}
    below: Counter[str] = Counter()
    for name, many in Counter(leaf.values()).items():
        below.update(dict.fromkeys(chains[name], many))
    levels = {name: _level(name, switches, heights[name], everything=below[name] == len(leaf)) for name in switches}
    placed = {name: {levels[one]: one for one in chain if levels[one]} for name, chain in chains.items()}
    return {node: placed[name] for node, name in leaf.items() if placed[name]}


def _chain(name: str, above: Mapping[str, str]) -> list[str]:
    """A switch and those above it, the nearest first."""
    chain = [name]
    while (name := above.get(name, "")) and len(chain) <= _MOST_HEIGHT:
        chain.append(name)
    return chain


def _level(name: str, switches: Switches, height: int, *, everything: bool) -> str:
    level = switches[name][2]
    if level != "?":
        return level if level in LEVELS else ""
    return "" if (everything and height > 0) or height >= len(_USUAL) else _USUAL[height]


def _height(name: str, switches: Switches, known: dict[str, int], depth: int) -> int:
    """Switches below, at most: 0 for one with nodes. Raises `InputError` where switches go in a circle."""
    if depth > _MOST_HEIGHT:
        raise InputError(f"switches go in a circle at {shorten(name, most=40)}; let each stand above its children only")
    if name not in known:
        children, of_nodes, _ = switches[name]
        under = [] if of_nodes else [_height(one, switches, known, depth + 1) for one in children if one in switches]
        known[name] = 0 if of_nodes else 1 + max(under, default=0)
    return known[name]
