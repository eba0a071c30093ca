"""A cluster written for schedulers: what each of them takes of it, a file a scheduler, and why another is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trilemma import outside_files
from trilemma.errors import InputError
from trilemma.simulation.cluster.kubernetes_objects import (
    kai_objects,
    kueue_objects,
    node_objects,
    volcano_objects,
    written,
)
from trilemma.simulation.cluster.simulation import ClusterQuestion
from trilemma.simulation.cluster.slurm_topology import reservations, topology_conf, topology_yaml


def export_cluster(question: ClusterQuestion, folder: Path) -> tuple[str, ...]:
    """Write the files of ``question`` to ``folder``; what a scheduler cannot say is told in place of its file."""
    nodes, queues = question.nodes, question.queues
    node_gpus = max(one.gpus for one in nodes)
    files: dict[str, Callable[[], str]] = {
        "topology.conf": lambda: topology_conf(nodes),
        "topology.yaml": lambda: topology_yaml(nodes),
        "nodes.yaml": lambda: written(node_objects(nodes)),
        "kueue.yaml": lambda: written(kueue_objects(nodes, queues)),
    }
    if queues:
        files |= {
            "reservations.sh": lambda: reservations(queues, node_gpus),
            "kai.yaml": lambda: written(kai_objects(queues)),
        }
    files["volcano.yaml"] = lambda: written(volcano_objects(nodes, queues))
    told = []
    with outside_files.written(folder, give="give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            try:
                content = text()
            except InputError as error:
                told.append(f"no {name}: {error}")
                continue
            if content.strip():
                (folder / name).write_text(content, encoding="utf-8")
                told.append(str(folder / name))
    return tuple(told)
