"""Files that start a fleet on machines: a script for each engine, one for the router, a container command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trilemma.engines.deployment.facts import facts, of_maker
from trilemma.engines.deployment.fleet import End, EngineGroup, Fleet, NodeSpan, Router
from trilemma.errors import InputError

#: More engines than anyone starts by hand.
_MOST_SCRIPTS = 64
_HERE = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One engine of a fleet on machines: its number in its group, its first node (from 1), GPUs of that node, ports."""

    group: EngineGroup
    number: int
    node: int
    first_gpu: int
    port: int
    side: int | None

    @property
    def script(self) -> str:
        role = "" if self.group.role == "serve" else f"-{self.group.role}"
        return f"serve{role}-{self.number}.sh"


def host_files(fleet: Fleet) -> dict[str, str]:
    """File name → content. Raises `InputError` where scripts would be too many to start by hand.

    One engine is ``serve.sh``. Several are ``serve-1.sh`` …, each with GPUs and port of its own, and ``router.sh`` where the
    engine has a router. On several nodes the variables NODE1, NODE2 … hold their addresses.
    """
    named = {name: text for group in fleet.groups for name, text in group.files.items()}
    contents = {**named, **fleet.beside}
    group = fleet.groups[0]
    if not fleet.apart and group.replicas == 1:
        contents["serve.sh"] = _one(fleet, group)
        return contents | docker_files(fleet)
    if sum(one.replicas for one in fleet.groups) > _MOST_SCRIPTS:
        raise InputError(
            f"{sum(one.replicas for one in fleet.groups)} engines are too many to start by hand (at most {_MOST_SCRIPTS});"
            " use --to kubernetes"
        )
    places = list(placed(fleet))
    several = max(place.node + place.group.nodes - 1 for place in places) > 1
    for place in places:
        contents[place.script] = _numbered(fleet, place, several=several)
    if fleet.router is not None:
        contents |= _router(fleet, fleet.router, places, several=several)
    return contents


def docker_files(fleet: Fleet) -> dict[str, str]:
    """``docker-run.sh`` of one engine on one node whose image and weights a container finds; else nothing."""
    if fleet.single is None or fleet.image is None or fleet.on_this_machine:
        return {}
    return {"docker-run.sh": docker_run(fleet, fleet.single, fleet.image)}


def placed(fleet: Fleet) -> Iterator[Place]:
    """Engines laid on nodes in order, a node filled before the next; those of several nodes have them to themselves."""
    per_node = fleet.per_node or sum(group.gpus * group.replicas for group in fleet.groups)
    node, used, on_node, sides = 1, 0, 0, 0
    for group in fleet.groups:
        for number in range(1, group.replicas + 1):
            if used and (group.nodes > 1 or used + group.gpus > per_node):
                node, used, on_node, sides = node + 1, 0, 0, 0
            side = None if group.side is None else group.side.first + sides
            port = fleet.port + facts()["hosts"]["port_step"] * (1 + on_node)
            yield Place(group=group, number=number, node=node, first_gpu=used, port=port, side=side)
            if group.nodes > 1:
                node += group.nodes
                continue
            used, on_node = used + group.gpus, on_node + 1
            sides += group.side.step if group.side is not None else 0


def lines(head: Sequence[str], words: Sequence[str]) -> str:
    """``head`` on one line and then one flag a line, quoted for the shell; our own ``$NAME`` words stay variables."""
    groups: list[list[str]] = [list(head)]
    for word in words:
        if word.startswith("-"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return " \\\n  ".join(" ".join(_quoted(word) for word in group) for group in groups if group)


class Variable(str):
    """A word of ours that holds a shell variable: double quotes keep it one word and let the shell fill it in."""

    __slots__ = ()


def _quoted(word: str) -> str:
    return f'"{word}"' if isinstance(word, Variable) else shlex.quote(word)


def _head(fleet: Fleet, label: str, *, files: bool) -> str:
    folder = 'cd "$(dirname "$0")"\n' if files else ""
    return f"#!/bin/sh\n# {fleet.label}{label}\nset -eu\n{folder}"


def _one(fleet: Fleet, group: EngineGroup) -> str:
    environment = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in group.environment)
    if group.span is None:
        label = f": {fleet.unmanaged}" if group.nodes > 1 and fleet.unmanaged else ""
        return _head(fleet, label, files=bool(group.files)) + environment + _alone(group)
    shape = f"{group.nodes} nodes of {group.gpus_per_node} GPUs"
    label = f" on {shape}: start it on each with NODE1 (address of the first) and NODE_RANK"
    return _head(fleet, label, files=bool(group.files)) + environment + _over_nodes(group, group.span, node=1, port=())


def _alone(group: EngineGroup) -> str:
    """The command of one process, in the script's own place where nothing comes after it."""
    around = [f"{line}\n" for line in (*group.before, "", *group.after) if line]
    own = f'{"" if group.after else "exec "}{_command(group)} \\\n  "$@"\n'
    return "".join([*around[: len(group.before)], own, *around[len(group.before) :]])


def _numbered(fleet: Fleet, place: Place, *, several: bool) -> str:
    group = place.group
    where = f", node {place.node}" if several and group.nodes == 1 else ""
    if group.nodes > 1:
        where = f", nodes {place.node} to {place.node + group.nodes - 1}: start it on each with NODE_RANK"
    role = "engine" if group.role == "serve" else f"{group.role} engine"
    where += f"; an HTTP balancer on port {fleet.port} goes before all of them" if fleet.router is None else ""
    parts = [
        _head(fleet, f": {role} {place.number} of {group.replicas}, port {place.port}{where}", files=bool(group.files))
    ]
    if group.nodes == 1:
        ids = ",".join(map(str, range(place.first_gpu, place.first_gpu + group.gpus)))
        parts.append(f"export {of_maker(fleet.maker)['visible']}={ids}\n")
    parts += [f"export {name}={shlex.quote(value)}\n" for name, value in group.environment]
    words: list[str] = ["--port", str(place.port)]
    if several:
        words = ["--host", "0.0.0.0", *words]
    if group.side is not None and place.side is not None:
        if group.side.variable is not None:
            parts.append(f"export {group.side.variable}={place.side}\n")
        if group.side.flag is not None:
            words += [group.side.flag, str(place.side)]
        if group.side.host_variable is not None and several:
            parts.append(_needs(place.node))
            parts.append(f'export {group.side.host_variable}="$NODE{place.node}"\n')
    if group.span is not None:
        parts.append(_over_nodes(group, group.span, node=place.node, port=words))
    else:
        parts.append(f'exec {_command(group, words)} \\\n  "$@"\n')
    return "".join(parts)


def _command(group: EngineGroup, extra: Sequence[str] = ()) -> str:
    """The command, program and model on its first line."""
    arguments = [*group.arguments, *extra]
    first = next((at for at, word in enumerate(arguments) if at and word.startswith("-")), len(arguments))
    return lines([*group.program, *arguments[:first]], arguments[first:])


def _over_nodes(group: EngineGroup, span: NodeSpan, *, node: int, port: Sequence[str]) -> str:
    """Node 0 runs one command, the others another: one script for all of them."""
    leader = f"$NODE{node}"

    def filled(words: Sequence[str]) -> list[str]:
        first = f"$((NODE_RANK * {span.ranks}))"
        return [
            Variable(word.format(leader=leader, rank="$NODE_RANK", first=first)) if "{" in word else word
            for word in words
        ]

    start = _needs(node) + ': "${NODE_RANK:?number of this node, from 0}"\n'
    ray = f"ray start --head --port={span.ray_port}\n  " if span.ray_port is not None else ""
    own = _command(group, [*port, *filled(span.leader)]).replace("\n", "\n  ")
    head = f'{ray}exec {own} \\\n    "$@"'
    if span.ray_port is not None:
        others = f'exec ray start --address="{leader}:{span.ray_port}" --block\n'
    else:
        others = f'exec {_command(group, filled(span.worker))} \\\n  "$@"\n'
    return f'{start}if [ "$NODE_RANK" -eq 0 ]; then\n  {head}\nfi\n{others}'


def _needs(node: int) -> str:
    return f': "${{NODE{node}:?address of node {node}}}"\n'


def _router(fleet: Fleet, router: Router, places: Sequence[Place], *, several: bool) -> dict[str, str]:
    by_name = "node{}" if router.by_file else "$NODE{}"
    ends = [
        End(
            role=place.group.role,
            host=by_name.format(place.node) if several else _HERE,
            port=place.port,
            side=place.side,
        )
        for place in places
    ]
    route = router.route(ends, fleet.port)
    words = [Variable(word) if several and "$NODE" in word else word for word in route.words]
    label = " behind one port" + (f" (pip install {router.package})" if router.package else "")
    if several and router.by_file:
        label += "; node1, node2 … in the file stand for the nodes' addresses"
    nodes = sorted({place.node for place in places}) if several and not router.by_file else []
    head = _head(fleet, label, files=bool(route.files)) + "".join(map(_needs, nodes))
    first = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return {**route.files, "router.sh": f'{head}exec {lines(words[:first], words[first:])} \\\n  "$@"\n'}


def docker_run(fleet: Fleet, group: EngineGroup, image: str) -> str:
    """``docker run`` on one node, weights cached in the user's own folder."""
    maker = of_maker(fleet.maker)
    head = ["docker", "run", "--rm", "--ipc=host", "-p", f"{fleet.port}:{fleet.port}"]
    options = [word.format(gpus=group.gpus) for word in maker["docker"]]
    mounts = ['-v "$HOME/.cache/huggingface:/root/.cache/huggingface"', "-e HF_TOKEN"]
    mounts += [f"-e {name}={shlex.quote(value)}" for name, value in group.environment]
    if fleet.weights.startswith("/"):
        mounts.append("-v " + shlex.quote(f"{fleet.weights}:{fleet.weights}:ro"))
    if group.files:
        mounts.append('-v "$(cd "$(dirname "$0")" && pwd):/config:ro"')
    entry, words = container_words(group, port=fleet.port)
    entered = ["--entrypoint", entry[0]] if entry else []
    quoted = " ".join((shlex.join([*head, *options, *entered]), *mounts))
    inner = lines([image, *entry[1:]], words)
    return f'#!/bin/sh\n# {fleet.label}\nset -eu\nexec {quoted} \\\n  {inner} \\\n  "$@"\n'


def container_words(group: EngineGroup, *, port: int | None) -> tuple[list[str], list[str]]:
    """What replaces the image's entry point (empty: nothing) and the words after it.

    The engine listens on ``port`` of every address, or answers no requests (None).
    """
    arguments = [f"/config/{word}" if word in group.files else word for word in group.arguments]
    arguments += [] if port is None else ["--host", "0.0.0.0", "--port", str(port)]
    if group.entry == "command":
        return list(group.program), arguments
    return [], [*group.program, *arguments] if group.entry == "args" else arguments
