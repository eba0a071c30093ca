"""How many processes a launcher starts: torchrun, deepspeed, accelerate, srun, mpirun, and the script behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from trilemma.commands.option_words import whole

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w{0,127})=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python[\d.]*")
_NODES = ("--nnodes", "--num_nodes", "--num-nodes", "--num_machines", "-N", "--nodes")
_PER_NODE = (
    "--nproc_per_node", "--nproc-per-node", "--num_gpus", "--num-gpus", "--gpus-per-node", "--ntasks-per-node", "--gres",
    "-npernode", "--npernode",
)  # fmt: skip
_TOTAL = ("--num_processes", "--num-processes", "-n", "--ntasks", "-np", "--np", "-G", "--gpus")
#: What starts one process for each GPU of a node; what stands before it (srun, mpirun) starts one of these a node.
_STARTERS = ("torchrun", "torchrun-hpc", "accelerate", "deepspeed", "composer")
_STARTING_MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "torchrun": "torchrun",
    "accelerate.commands.launch": "accelerate", "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip
#: What starts several processes by itself.
_SCHEDULERS = ("srun", "mpirun", "mpiexec", "accelerate", "deepspeed", "composer")
#: Values that stand for "as many as there are".
_ALL = ("gpu", "auto", "cuda")
_MOST = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherCommand:
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

    @property
    def starter(self) -> str:
        """The program that starts a process for each GPU (torchrun, accelerate, deepspeed); "" where the script starts alone."""
        for word in reversed(self.launcher):
            name = PurePosixPath(word).name
            if name in _STARTERS or word in _STARTING_MODULES:
                return _STARTING_MODULES.get(word, name)
        return ""


def split_launch(words: Sequence[str], *, programs: Sequence[str] = ()) -> LauncherCommand:
    """Launcher and script of a training command. The script is the first ``*.py`` (or ``*.sh``), the module behind ``-m`` that
    starts nothing itself, or one of ``programs``, which are called by their name and start processes themselves."""
    environment = {}
    at = 0
    while at < len(words) and (match := _ASSIGNMENT.fullmatch(words[at])):
        environment[match.group(1)] = match.group(2)
        at += 1
    rest = list(words[at:])
    script_at, script, own = _script(rest, programs)
    launcher = rest[:script_at]
    begin = _starts_at(launcher)
    inner, outer = launcher[begin:], launcher[:begin]
    per_node = _number(inner, _PER_NODE) or _included(inner)
    if per_node is None and _takes_what_is_visible(inner):
        per_node = _visible(environment)
    if per_node is None and script not in programs and _plain(inner):
        per_node = 1
    nodes = _number(inner, _NODES)
    return LauncherCommand(
        nodes=nodes if nodes is not None or not outer else _number(outer, _NODES),
        per_node=per_node,
        total=_number(inner, _TOTAL),
        environment=environment,
        launcher=tuple(launcher),
        script=script,
        words=tuple(own),
    )


def of_module(words: Sequence[str], at: int) -> list[str]:
    """``words`` from ``at`` on; a module (``-m NAME``) with the interpreter before it, without its own options (``-u``)."""
    if not at or words[at] != "-m":
        return list(words[at:])
    before = [word for word in words[:at] if _PYTHON.fullmatch(PurePosixPath(word).name)]
    return [*(before[-1:] or words[at - 1 : at]), *words[at:]]


def _script(rest: Sequence[str], programs: Sequence[str]) -> tuple[int, str, list[str]]:
    for index, word in enumerate(rest):
        if word in ("-m", "--module") and index + 1 < len(rest) and not rest[index + 1].startswith("-"):
            if rest[index + 1] in _STARTING_MODULES:
                continue
            return index, rest[index + 1], list(rest[index + 2 :])
        name = PurePosixPath(word).name
        if (word.endswith((".py", ".sh")) or name in programs) and not word.startswith("-"):
            return index, name, list(rest[index + 1 :])
    return len(rest), "", []


def _starts_at(launcher: Sequence[str]) -> int:
    """Where the words of the program begin that starts a process for each GPU; 0 where none does."""
    for at in range(len(launcher) - 1, -1, -1):
        if PurePosixPath(launcher[at]).name in _STARTERS or launcher[at] in _STARTING_MODULES:
            return at
    return 0


def _plain(launcher: Sequence[str]) -> bool:
    """torchrun starts one process where nothing is said; so does python alone."""
    if any(word.split("=", 1)[0] in _PER_NODE for word in launcher):
        return False
    names = [PurePosixPath(word).name for word in launcher] or ["python"]
    if names[0].startswith("torchrun") or _STARTING_MODULES.get(names[0]) == "torchrun":
        return True
    return not any(name in _SCHEDULERS for name in names) and any(re.fullmatch(r"python[\d.]*", name) for name in names)


def _takes_what_is_visible(launcher: Sequence[str]) -> bool:
    """deepspeed starts on every GPU it sees; so does torchrun where the number is "gpu"."""
    named = any(value in _ALL for name, value in pairwise(launcher) if name in _PER_NODE)
    named = named or any(word.partition("=")[0] in _PER_NODE and word.partition("=")[2] in _ALL for word in launcher)
    return named or (bool(launcher) and PurePosixPath(launcher[0]).name == "deepspeed")


def _visible(environment: Mapping[str, str]) -> int | None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        devices = [device for device in environment.get(name, "").split(",") if device.strip()]
        if devices and "$" not in environment[name]:
            return len(devices)
    return None


def visible_gpus(launch: LauncherCommand) -> int | None:
    """How many GPUs the environment of a command shows; None where it hides none."""
    return _visible(launch.environment)


def _included(words: Sequence[str]) -> int | None:
    """GPUs of the first node of deepspeed's ``--include localhost:0,1``."""
    for at, word in enumerate(words):
        name, sign, attached = word.partition("=")
        if name in ("--include", "-i") and (sign or at + 1 < len(words)):
            listed = (attached if sign else words[at + 1]).split("@")[0].partition(":")[2]
            found = [slot for slot in listed.split(",") if slot.strip().isdigit()]
            return len(found) or None
    return None


def _number(words: Sequence[str], names: Sequence[str]) -> int | None:
    """The number behind the first of ``names``, in their order, that has one."""
    scheduled = any(PurePosixPath(word).name in ("srun", "salloc", "mpirun", "mpiexec") for word in words)
    for wanted in names:
        if not wanted.startswith("--") and not scheduled:
            continue  # -n is also a name, of conda's environment say
        for at, word in enumerate(words):
            name, sign, attached = word.partition("=")
            if name != wanted:
                continue
            value = attached if sign else (words[at + 1] if at + 1 < len(words) else "")
            value = value.rpartition(":")[2] if name in ("--nnodes", "--gres", "--nodes", "-N") else value
            if value in _ALL or value.startswith("$") or not value:
                continue
            return whole(value, name, high=_MOST)
    return None
