"""``nvidia-smi`` without options: the table of a machine's GPUs, as people paste it (drivers 418 to 610)."""

from __future__ import annotations

import re

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import MOST_GPUS, facts_of, gpu_event, number_of
from trilemma.diagnosis.readers import Reader

KIND = "nvidia-smi"
_HEAD = re.compile(r"NVIDIA-SMI (\S{1,24})")
_DRIVER = re.compile(r"(?:Driver|KMD) Version: ?(\S{1,24})")
_CUDA = re.compile(r"CUDA (?:UMD )?Version: ?([0-9.]{1,12})")
_GPU = re.compile(
    r"^[^|]{0,40}\|\s{1,4}(\d{1,4})\s{2}(\S.{0,60}?)\s+(On|Off|N/A|ERR!)\s*\|\s*(?:[0-9A-Fa-f]{4,8}:|N/A\s)"
)
_STATE = re.compile(
    r"\|[^|]*?(\d{1,3})C\s[^|]*?(?:(\d{1,5})W|N/A)\s*/\s*(?:(\d{1,5})W|N/A)\s*\|\s*(\d{1,9})MiB\s*/\s*(\d{1,9})MiB\s*\|"
)
_MEMORY = re.compile(r"(\d{1,9})MiB\s*/\s*(\d{1,9})MiB")


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._driver = self._cuda = ""
        self._gpus: list[Event] = []
        self._open: tuple[int, dict[str, object]] | None = None

    def take(self, record: str, where: int) -> None:
        if "NVIDIA-SMI" in record and _HEAD.search(record) and "failed" not in record:
            self._close()
            self.greedy = True
            driver, cuda = _DRIVER.search(record), _CUDA.search(record)
            self._driver = driver[1] if driver else self._driver
            self._cuda = cuda[1] if cuda else self._cuda
        elif self.greedy:
            self._row(record, where)

    def _row(self, record: str, where: int) -> None:
        if "Processes:" in record or "MIG devices:" in record:
            self._close()
            self.greedy = False
        elif found := _GPU.match(record):
            self._close()
            self._open = where, {"gpu": found[1], "name": found[2], "persistence": found[3] == "On"}
            tail = record.rstrip().rstrip("|").rpartition("|")[2].strip()
            self._open[1]["ecc"] = None if tail in ("N/A", "") else tail != "Off"
            self._open[1]["uncorrected_errors"] = int(tail) if tail.isdigit() and len(tail) < 12 else None
        elif self._open is not None:
            self._of_state(record, self._open[1])

    def _of_state(self, record: str, values: dict[str, object]) -> None:
        if memory := _MEMORY.search(record):
            values["memory_total_mib"] = float(memory[2])
            values["memory_free_mib"] = float(memory[2]) - float(memory[1])
            if state := _STATE.search(record):
                values |= {"temperature_c": number_of(state[1]), "power_limit_w": number_of(state[3] or "")}
        elif re.search(r"\|\s*Enabled\*?\s*\|\s*$", record):
            values["mig"] = True

    def _close(self) -> None:
        if self._open is not None and len(self._gpus) < MOST_GPUS:
            line, values = self._open
            self._gpus.append(gpu_event(line, driver=self._driver or None, **values))
        self._open = None

    def part(self) -> Part | None:
        self._close()
        if not self._driver and not self._gpus:
            return None
        facts = facts_of(self._gpus, driver_version=self._driver, cuda_version=self._cuda)
        return Part(kind=KIND, weight=50 + 3 * len(self._gpus), facts=facts, events=tuple(self._gpus))


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("NVIDIA-SMI",))
