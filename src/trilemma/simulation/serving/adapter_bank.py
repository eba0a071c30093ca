"""The adapters of one engine: which lie in its slots, which requests may enter beside them, and what they add to its steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from trilemma.simulation.serving.policies.policy import Chunks
from trilemma.simulation.serving.step_times import Steps
from trilemma.simulation.serving.traffic import ServedRequest
from trilemma.timing.adapters import AdapterCost


class AdapterBank:
    """``slots`` adapters at most run at once. A request whose adapter would be one more is passed over, and those behind it may
    enter; requests of the model itself always may. An adapter that is not in a slot takes the place of the one used longest ago,
    and the step that it is first in waits for it: from the host's memory, or, where the host keeps the last ``kept`` adapters
    only, read for ``read_s`` first.

    Source: vllm/v1/core/sched/scheduler.py (scheduled_loras, max_loras) and vllm/lora/worker_manager.py (LRU);
    sglang/srt/managers/scheduler.py (can_run_lora_batch) and srt/lora/mem_pool.py.
    """

    def __init__(self, cost: AdapterCost, *, slots: int, kept: float = float("inf"), read_s: float = 0.0) -> None:
        self._cost, self.slots, self._kept, self._read_s = cost, slots, kept, read_s
        self._active: set[str] = set()
        self._resident: OrderedDict[str, None] = OrderedDict()
        self._on_host: OrderedDict[str, None] = OrderedDict()
        self.pending_s = 0.0
        self.asked = self.loads = self.reads = self.passed_over = 0
        self.load_s = 0.0

    def begin(self, running: Iterable[ServedRequest]) -> None:
        """A step is composed beside what runs."""
        self._active = {one.arrival.adapter for one in running if one.arrival.adapter is not None}

    def takes(self, adapter: str | None) -> bool:
        if adapter is None or adapter in self._active or len(self._active) < self.slots:
            return True
        self.passed_over += 1
        return False

    def admit(self, adapter: str | None) -> None:
        """A request of ``adapter`` enters; its adapter is brought into a slot where it is in none."""
        if adapter is None:
            return
        self.asked += 1
        self._active.add(adapter)
        if adapter in self._resident:
            self._resident.move_to_end(adapter)
            return
        while len(self._resident) >= self.slots:
            del self._resident[next(one for one in self._resident if one not in self._active)]
        self._resident[adapter] = None
        self.loads += 1
        seconds = self._cost.load_s
        if adapter in self._on_host:
            self._on_host.move_to_end(adapter)
        else:
            self.reads += 1
            seconds += self._read_s
            self._on_host[adapter] = None
            if len(self._on_host) > self._kept:
                self._on_host.popitem(last=False)
        self.load_s += seconds
        self.pending_s += seconds

    def added_s(self, running: Iterable[ServedRequest], chunks: Chunks, *, decodes: bool) -> float:
        """Seconds that adapters add to a step of ``chunks``, and of a token of each that decodes where it ``decodes``; with loads
        that it waits for."""
        names: set[str] = set()
        rows = 0
        for request, new in chunks:
            if request.arrival.adapter is not None:
                names.add(request.arrival.adapter)
                rows += new
        if decodes:
            for request in running:
                if request.arrival.adapter is not None and request.last_tick >= 0:
                    names.add(request.arrival.adapter)
                    rows += 1
        return self._cost.step_s(len(names), rows) + self.pending_s


class LongerSteps:
    """The steps of ``times``, each ``more_s`` longer."""

    def __init__(self, times: Steps) -> None:
        self._times, self.more_s = times, 0.0

    def decode_s(self, sequences: int, context: float) -> float:
        return self._times.decode_s(sequences, context) + self.more_s

    def run_s(self, sequences: int, context_sum: float, steps: int) -> float:
        return self._times.run_s(sequences, context_sum, steps) + steps * self.more_s

    def mixed_s(self, sequences: int, context: float, chunks: Iterable[tuple[int, int]], ended: int) -> float:
        return self._times.mixed_s(sequences, context, chunks, ended) + self.more_s
