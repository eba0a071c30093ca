"""Files that start a training command on a machine, on Slurm and on Kubernetes, with hints of where its groups belong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from trilemma.foreign_words import written

_PORT = 29500


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenFlag:
    """What a plan does not say and the reader sets: the ``flag`` of the program, the ``variable`` of its value, its meaning."""

    flag: str
    variable: str
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedProgram:
    """How a framework runs one plan, which its package says in ``deploy.started``: the program behind its launcher, the
    environment, what the reader sets, the files that the program names."""

    program: tuple[str, ...]
    launcher: tuple[str, ...] = ("torchrun",)
    environment: tuple[tuple[str, str], ...] = ()
    asked: tuple[OpenFlag, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """What is started: ``program`` behind torchrun (``train.py …`` or ``-m module …``) on ``nodes`` of ``gpus_per_node``.

    ``domain_nodes`` is how many nodes share one fast link (the 16 of an NVL72 rack job, else 1); ``stage_nodes`` how many a
    pipeline stage spans: neighbours in rank order should be neighbours in the network.
    """

    name: str
    program: tuple[str, ...]
    nodes: int
    gpus_per_node: int
    domain_nodes: int = 1
    launcher: tuple[str, ...] = ("torchrun",)
    environment: tuple[tuple[str, str], ...] = ()
    asked: tuple[OpenFlag, ...] = ()
    image: str = "nvcr.io/nvidia/pytorch:25.09-py3"

    def __post_init__(self) -> None:
        values = (value for pair in self.environment for value in pair)
        written((self.name, *self.program, *self.launcher, self.image, *values), what="the word")


def launch_files(job: TrainingJob) -> dict[str, str]:
    """``train.sh`` (one command on every node), ``slurm.sbatch``, ``jobset.yaml`` (JobSet queued by Kueue)."""
    return {"train.sh": _script(job), "slurm.sbatch": _sbatch(job), "jobset.yaml": _jobset(job)}


def _script(job: TrainingJob) -> str:
    """Run on each node; NODE_RANK and MASTER_ADDR come from what starts it. Words given to the script go to the program."""
    lines = [
        "#!/bin/bash",
        "set -euo pipefail",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environment),
    ]
    if job.asked:
        lines += ["# What the plan does not say is yours to set.", f"set -- {_asked(job)} \\", '  "$@"']
    return "\n".join([*lines, f"exec {_launch(job)} \\", f"  {_words(job.program)} \\", '  "$@"']) + "\n"


def _asked(job: TrainingJob) -> str:
    return " \\\n  ".join(f'{one.flag} "${{{one.variable}:?{one.meaning}}}"' for one in job.asked)


def _launch(job: TrainingJob) -> str:
    if job.launcher[0] != "torchrun":
        return shlex.join(job.launcher)
    words = f"torchrun --nproc_per_node {job.gpus_per_node} --nnodes {job.nodes}"
    if job.nodes > 1:
        words += f' --rdzv_backend c10d --rdzv_endpoint "${{MASTER_ADDR:-localhost}}:{_PORT}" --node_rank "${{NODE_RANK:-0}}"'
    return words


def _words(words: Sequence[str]) -> str:
    """One flag a line, quoted for the shell."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return " \\\n  ".join(shlex.join(group) for group in groups)


def _sbatch(job: TrainingJob) -> str:
    """One torchrun a node. A block topology gets segments of a link domain, a tree one switch where the job may fit it."""
    hints = (
        [f"#SBATCH --segment={job.domain_nodes}"] if job.domain_nodes > 1 and job.nodes % job.domain_nodes == 0 else []
    )
    if not hints and 1 < job.nodes <= 32:
        hints = ["#SBATCH --switches=1@10:00"]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={job.gpus_per_node}",
        "#SBATCH --exclusive",
        "#SBATCH --distribution=block",
        *hints,
        *([f"# Export first: {', '.join(one.variable for one in job.asked)}."] if job.asked else []),
        "# Ranks follow nodes in order: groups that talk most (tensor, then context, then data parallel) stay near.",
        "set -euo pipefail",
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "srun --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec ./train.sh'",
    ]
    return "\n".join(lines) + "\n"


def _jobset(job: TrainingJob) -> str:
    """A JobSet with one indexed Job, admitted by Kueue; topology-aware scheduling keeps a link domain in one rack."""
    rack = job.domain_nodes > 1
    topology = "kueue.x-k8s.io/podset-required-topology" if rack else "kueue.x-k8s.io/podset-preferred-topology"
    level = "nvidia.com/gpu.clique" if rack and job.nodes <= job.domain_nodes else "cloud.google.com/gce-topology-block"
    level = level if rack else "kubernetes.io/hostname" if job.nodes == 1 else "topology.kubernetes.io/zone"
    resources = {"nvidia.com/gpu": str(job.gpus_per_node)}
    container: dict[str, Any] = {
        "name": "trainer",
        "image": job.image,
        "command": ["bash", "/workspace/train.sh"],
        "env": [
            {"name": "MASTER_ADDR", "value": f"{job.name}-workers-0-0.{job.name}"},
            {
                "name": "NODE_RANK",
                "valueFrom": {
                    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
                },
            },
            # Empty on purpose: train.sh says what each stands for.
            *({"name": one.variable, "value": ""} for one in job.asked),
        ],
        "resources": {"limits": resources, "requests": dict(resources)},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "workspace", "mountPath": "/workspace"},
        ],
    }
    template = {
        "metadata": {"annotations": {topology: level}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "workspace", "configMap": {"name": f"{job.name}-files", "defaultMode": 0o755}},
            ],
        },
    }
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, "labels": {"kueue.x-k8s.io/queue-name": "training"}},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {"maxRestarts": 3},
            "replicatedJobs": [
                {
                    "name": "workers",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "parallelism": job.nodes,
                            "completions": job.nodes,
                            "completionMode": "Indexed",
                            "backoffLimit": 0,
                            "template": template,
                        }
                    },
                }
            ],
        },
    }
    return str(yaml.safe_dump(manifest, sort_keys=False, width=1000))


def job_name(model: str) -> str:
    """A DNS label out of a model's name."""
    word = re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    return f"train-{word}"[:40].rstrip("-")
