"""How many processes a launcher starts: torchrun, deepspeed, accelerate, srun, mpirun, and the script behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trilemma.commands.option_words import whole

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w{0,127})=(.*)", re.DOTALL)
_NODES = ("--nnodes", "--num_nodes", "--num_machines", "-N", "--nodes")
_PER_NODE = ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--gpus-per-node", "--ntasks-per-node", "--gres")
_TOTAL = ("--num_processes", "-n", "--ntasks", "-np", "-G", "--gpus")
#: Values that stand for "as many as there are".
_ALL = ("gpu", "auto", "cuda")
_MOST = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """``nodes``, processes ``per_node`` or ``total`` as stated (None: not said), the environment, the script's own words."""

    nodes: int | None
    per_node: int | None
    total: int | None
    environment: dict[str, str]
    launcher: tuple[str, ...]
    script: str
    words: tuple[str, ...]

    @property
    def gpus(self) -> int | None:
        """Processes started in all; None where a number is missing."""
        if self.total is not None:
            return self.total
        if self.per_node is None:
            return None
        return self.per_node * (self.nodes or 1)

    @property
    def gpus_per_node(self) -> int | None:
        if self.per_node is not None:
            return self.per_node
        if self.total is not None and self.nodes and self.total % self.nodes == 0:
            return self.total // self.nodes
        return None


def split_launch(words: Sequence[str]) -> Launch:
    """Launcher and script of a training command. The script is the first ``*.py`` (or ``*.sh``) or the module behind ``-m``."""
    environment = {}
    at = 0
    while at < len(words) and (match := _ASSIGNMENT.fullmatch(words[at])):
        environment[match.group(1)] = match.group(2)
        at += 1
    rest = list(words[at:])
    script_at, script, own = len(rest), "", []
    for index, word in enumerate(rest):
        if word in ("-m", "--module") and index + 1 < len(rest) and not rest[index + 1].startswith("-"):
            script_at, script, own = index, rest[index + 1], rest[index + 2 :]
            break
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            script_at, script, own = index, PurePosixPath(word).name, rest[index + 1 :]
            break
    launcher = rest[:script_at]
    return Launch(
        nodes=_number(launcher, _NODES),
        per_node=_number(launcher, _PER_NODE) or (1 if _plain_torchrun(launcher) else None),
        total=_number(launcher, _TOTAL),
        environment=environment,
        launcher=tuple(launcher),
        script=script,
        words=tuple(own),
    )


def _plain_torchrun(launcher: Sequence[str]) -> bool:
    """torchrun starts one process where nothing is said; so does python alone."""
    first = PurePosixPath(launcher[0]).name if launcher else "python"
    stated = any(word.split("=", 1)[0] in _PER_NODE for word in launcher)
    return not stated and (first.startswith("torchrun") or bool(re.fullmatch(r"python[\d.]*", first)))


def _number(words: Sequence[str], names: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        name, sign, attached = word.partition("=")
        if name not in names:
            continue
        value = attached if sign else (words[at + 1] if at + 1 < len(words) else "")
        value = value.rpartition(":")[2] if name == "--nnodes" or name == "--gres" else value
        if value in _ALL or value.startswith("$") or not value:
            continue
        return whole(value, name, high=_MOST)
    return None
