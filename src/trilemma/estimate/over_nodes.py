"""What to run on each node where one engine takes several: the words of the files that are exported."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from trilemma import engines
from trilemma.errors import InputError
from trilemma.estimate.offer import NodeCommand
from trilemma.question import ServingQuestion


def node_commands(question: ServingQuestion, version: str) -> tuple[NodeCommand, ...]:
    """One command for the first node and one for the others; none where the engine fits on one node, or no files are written
    for it."""
    cluster = question.cluster
    if cluster.gpus <= cluster.gpus_per_node or len(question.plan.pools) > 1:
        return ()
    try:
        fleet = engines.deployer(question.plan.engine.name)(
            model=question.named, plan=question.plan, version=version, maker=cluster.accelerator.vendor,
            per_node=cluster.gpus_per_node,
        )  # fmt: skip
    except InputError:
        return ()
    group = fleet.groups[0]
    span = group.span
    if span is None:
        return ()
    own = [*group.program, *group.arguments]
    head = f"ray start --head --port={span.ray_port} && " if span.ray_port is not None else ""
    first = f"{head}{shlex.join([*own, *_filled(span.leader, 0, span.ranks)])}"
    others = shlex.join([*own, *_filled(span.worker, 1, span.ranks)])
    if span.ray_port is not None:
        others = f"ray start --address=NODE0:{span.ray_port} --block"
    return (
        NodeCommand(first_node=0, last_node=0, command=first, before_others=False),
        NodeCommand(first_node=1, last_node=span.nodes - 1, command=others, before_others=span.ray_port is not None),
    )


def _filled(words: Sequence[str], node: int, ranks: int) -> list[str]:
    return [word.format(leader="NODE0", rank=node, first=node * ranks) for word in words]
