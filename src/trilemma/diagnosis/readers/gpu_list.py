"""Lists of GPUs by name: ``nvidia-smi -L``, and what ``collect_env.py`` of PyTorch, vLLM and SGLang prints."""

from __future__ import annotations

import re

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import MOST_GPUS, facts_of, gpu_event
from trilemma.diagnosis.readers import Reader

KIND = "gpu-list"
_GPU = re.compile(
    r"(?:^|configuration\s*:|GPU models:)\s*GPU (\d{1,4}): (\S[^()]{1,80}?)\s*(?:\(UUID: (GPU-[0-9a-f-]{8,40})\))?\s*$"
)
_SEVERAL = re.compile(r"^\s*GPU (\d{1,4}(?:,\d{1,4}){1,255}): (\S[^()]{1,80}?)\s*$")  # SGLang: GPU 0,1,2,3: NVIDIA H100
_DRIVER = re.compile(r"[Nn]vidia driver version\s*: ?([0-9][0-9.]{2,16})|CUDA Driver Version: ([0-9][0-9.]{2,16})")
_SMALL = re.compile(r"^\s*MIG \S+\s+Device")


class _Gatherer:
    def __init__(self) -> None:
        self._gpus: dict[str, Event] = {}
        self._driver = ""
        self._slices = 0

    def take(self, record: str, where: int) -> None:
        if found := _DRIVER.search(record):
            self._driver = found[1] or found[2]
        elif _SMALL.match(record):
            self._slices += 1
        elif found := _SEVERAL.match(record):
            for number in found[1].split(","):
                self._keep(number, found[2], None, where)
        elif found := _GPU.search(record):
            self._keep(found[1], found[2], found[3], where)

    def _keep(self, number: str, name: str, uuid: str | None, where: int) -> None:
        if number not in self._gpus and len(self._gpus) < MOST_GPUS:
            self._gpus[number] = gpu_event(where, gpu=number, name=name, uuid=uuid)

    def part(self) -> Part | None:
        gpus = list(self._gpus.values())
        if not gpus:
            return None
        facts = facts_of(gpus, driver_version=self._driver, mig_slices=self._slices)
        return Part(kind=KIND, weight=len(gpus), facts=facts, events=tuple(gpus))


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("(UUID: GPU-", "GPU models", "GPU 0", "GPU 1", "GPU 2", "GPU 3", "GPU 4", "GPU 5", "GPU 6", "GPU 7", "GPU 8",
           "GPU 9", "driver version", "Driver Version", "  MIG "),
)  # fmt: skip
