"""What to run for a plan, node by node where one engine takes several: the words of the files that are exported."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from trilemma import engines
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate


def run_lines(estimate: Estimate) -> Iterator[str]:
    """The command of the plan, or those of its first node and of the others."""
    over_nodes = list(_over_nodes(estimate))
    if over_nodes:
        yield from over_nodes
    elif estimate.command:
        yield estimate.command


def _over_nodes(estimate: Estimate) -> Iterator[str]:
    """``on node 0: …`` where an engine spans nodes. Nothing where it does not, or where no files are written for the engine."""
    question, cluster = estimate.question, estimate.question.cluster
    if cluster.gpus <= cluster.gpus_per_node or len(question.plan.pools) > 1:
        return
    try:
        fleet = engines.deployer(question.plan.engine.name)(
            model=question.named, plan=question.plan, version=estimate.version, maker=cluster.accelerator.vendor,
            per_node=cluster.gpus_per_node,
        )  # fmt: skip
    except InputError:
        return
    group = fleet.groups[0]
    span = group.span
    if span is None:
        return
    own = [*group.program, *group.arguments]
    head = f"ray start --head --port={span.ray_port} && " if span.ray_port is not None else ""
    yield f"on node 0 (NODE0 is its address): {head}{shlex.join([*own, *_filled(span.leader, 0, span.ranks)])}"
    where = "on node 1" if span.nodes == 2 else f"on nodes 1 to {span.nodes - 1} (here 1)"
    if span.ray_port is not None:
        yield f"{where}, before it: ray start --address=NODE0:{span.ray_port} --block"
    else:
        yield f"{where}: {shlex.join([*own, *_filled(span.worker, 1, span.ranks)])}"


def _filled(words: Sequence[str], node: int, ranks: int) -> list[str]:
    return [word.format(leader="NODE0", rank=node, first=node * ranks) for word in words]
