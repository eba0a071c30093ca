"""Commands that stand in logs: what a shell echoes (``set -x``) and the arguments that Megatron-LM prints.

A training log that holds its own command can be held against the estimator without being told what ran.
"""

from __future__ import annotations

import re
import shlex

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "launch-command"
_MOST_TEXT = 16_000
_MOST_ARRAYS = 16
#: ``+ TRAINING_ARGS=('--a=1' '--b')`` and ``+ TRAIN_SCRIPT=./train.py`` of an echoing shell.
_ARRAY = re.compile(r"^(?:\S{1,40}[:>] ?)?\++ (?:declare -a |export )?([A-Z_]{2,40})=\((.*)\)\s*$")
_SCRIPT = re.compile(r"^(?:\S{1,40}[:>] ?)?\++ (?:export )?[A-Z_]{2,40}=(\S{1,300}\.py)\s*$")
_ECHOED = re.compile(
    r"^(?:\S{1,40}[:>] ?)?(?:\++|\$|#|>) ?((?:[A-Za-z_]\w*=\S* ){0,40}(?:\S{0,200}/)?(?:torchrun|deepspeed|accelerate|srun|"
    r"mpirun|python3?|vllm|trtllm-serve|sglang|llama-server) .+)$"
)
#: "  num_layers ...................... 32" of Megatron-LM's ``print_args``, after a rank's prefix.
_DUMPED = re.compile(r"^(?:\[[^\]]{1,40}\]:?|\S{1,40}[:>])?\s{1,4}([a-z]\w{1,80}) \.{2,80} (\S.{0,300}?)\s*$")
_DUMP_BEGINS = re.compile(r"-{4,} arguments -{4,}")
_DUMP_ENDS = "end of arguments"


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._line: int | None = None
        self._arrays: dict[str, str] = {}
        self._script: str | None = None
        self._command: str | None = None
        self._dumped: dict[str, str] = {}

    def take(self, record: str, where: int) -> None:
        if self.greedy:
            if _DUMP_ENDS in record:
                self.greedy = False
            elif found := _DUMPED.match(record[:1000]):
                self._dumped.setdefault(found[1], found[2])
            return
        if _DUMP_BEGINS.search(record[:400]):
            self.greedy, self._line = True, self._line or where
            return
        text = record[:_MOST_TEXT]
        if found := _ARRAY.match(text):
            if len(self._arrays) < _MOST_ARRAYS:
                self._arrays[found[1]] = found[2]
                self._line = self._line or where
        elif found := _SCRIPT.match(text):
            self._script = found[1]
        elif self._command is None and (found := _ECHOED.match(text)):
            self._command, self._line = found[1], where

    def part(self) -> Part | None:
        words = self._words()
        if words is None:
            return None
        command = shlex.join(words)
        event = Event(name="command", line=self._line, values={"text": command[:300]})
        return Part(kind=KIND, weight=0.1, facts={"command": command[:2000]}, events=(event,), whole=tuple(words))

    def _words(self) -> list[str] | None:
        try:
            if self._script is not None and self._arrays:
                starting = [name for name in self._arrays if "RUN" in name or "LAUNCH" in name]
                own = [name for name in self._arrays if name not in starting]
                parts = [shlex.split(self._arrays[name]) for name in (*starting, *own)]
                inside = [word for part in parts[: len(starting)] for word in part]
                after = [word for part in parts[len(starting) :] for word in part]
                return [*(["torchrun", *inside] if inside else []), self._script, *_uncommented(after)]
            if self._dumped.get("num_layers"):
                return _of_dump(self._dumped)
            return shlex.split(self._command) if self._command else None
        except ValueError:
            return None


def _uncommented(words: list[str]) -> list[str]:
    """Words of an array whose comments ended up inside: what follows a "#" up to the next option is none."""
    kept: list[str] = []
    skipping = False
    for word in words:
        if word.strip() == "#":
            skipping = True
        elif word.startswith("-"):
            skipping = False
        if not skipping:
            kept.append(word)
    return kept


def _of_dump(dumped: dict[str, str]) -> list[str]:
    """The command behind Megatron-LM's arguments: switches that are on, and values that are set."""
    from trilemma.engines.training import framework_facts

    facts = framework_facts("megatron_flags")
    switches, values = frozenset(facts["switches"]), frozenset(facts["values"])
    world = int(dumped["world_size"]) if dumped.get("world_size", "").isdecimal() else 0
    start = ["torchrun"]
    if world:
        node = 8 if world % 8 == 0 else world
        start += ["--nnodes", str(world // node), "--nproc_per_node", str(node)]
    words = [*start, "pretrain_gpt.py"]
    for name, value in dumped.items():
        flag = name.replace("_", "-")
        if flag in switches and value == "True":
            words.append(f"--{flag}")
        elif flag in values and value not in ("None", "False", "True") and not value.startswith(("[", "{")):
            words += [f"--{flag}", value]
    off = {"add_bias_linear": "--disable-bias-linear"}
    words += [flag for name, flag in off.items() if dumped.get(name) == "False"]
    return words


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("_ARGS=(", "ARGS+=(", ".py", "torchrun ", "deepspeed ", "accelerate launch", "vllm serve", "trtllm-serve ",
           "llama-server ", "sglang.", "arguments ---", "end of arguments"),
)  # fmt: skip
