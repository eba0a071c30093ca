"""What to run for a plan, node by node where one engine takes several."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.estimate.estimate import Estimate


def run_lines(estimate: Estimate) -> Iterator[str]:
    """The command of the plan, or those of its first node and of the others."""
    over_nodes = estimate.node_commands
    for one in over_nodes:
        nodes = f"nodes {one.first_node} to {one.last_node} (here {one.first_node})"
        where = f"node {one.first_node}" if one.first_node == one.last_node else nodes
        note = " (NODE0 is its address)" if one.first_node == 0 else ", before it" if one.before_others else ""
        yield f"on {where}{note}: {one.command}"
    if not over_nodes and estimate.command:
        yield estimate.command
