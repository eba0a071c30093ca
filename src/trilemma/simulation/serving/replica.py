"""One engine over time: steps that prefill one by one, runs of decode steps in leaps, blocks counted all along.

A leap goes over steps that are alike: nobody ends, arrives or is thrown out in them. All sequences grow by a token a step, so
its seconds are those of its middle step times its steps, and its blocks follow from how many sequences stand at which place
in their last block. A leap is settled when it is over, so that an arrival can end it at the next step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from trilemma.simulation.serving.adapter_bank import AdapterBank, LongerSteps
from trilemma.simulation.serving.busy_time import BusyTime
from trilemma.simulation.serving.gauges import Gauges
from trilemma.simulation.serving.leaps import next_loaded_s, queue_up, steps_until
from trilemma.simulation.serving.losses import give_up
from trilemma.simulation.serving.policies.policy import Chunks, SchedulingPolicy
from trilemma.simulation.serving.request_cache import RequestCache
from trilemma.simulation.serving.step_times import Steps
from trilemma.simulation.serving.traffic import Arrival, ServedRequest

_LONGEST_LEAP = 4096  # steps at most, so that a run that nothing ends is seen


class EngineReplica:
    """One engine (or one of its attention replicas) with its queue, its cache and its clock.

    ``ends_s`` is when what is under way ends; None where the engine is idle. ``done`` is told of each request that ends
    (``finish_s`` is below 0 where its client gave up after ``timeout_s``). A busy engine sees a request ``lag_steps`` steps late.
    ``adapters`` are those of its slots, where it serves any.
    """

    def __init__(
        self, policy: SchedulingPolicy, times: Steps, cache: RequestCache, *, most_running: int,
        done: Callable[[ServedRequest, float], None], refused: Callable[[Arrival], None], gauges: Gauges,
        timeout_s: float = float("inf"), lag_steps: float = 0.0, adapters: AdapterBank | None = None,
    ) -> None:  # fmt: skip
        self.policy, self.gauges, self.most_running, self.adapters = policy, gauges, most_running, adapters
        self._longer = LongerSteps(times)
        self.times: Steps = times if adapters is None else self._longer
        self.cache, self.pool, self.block_size = cache, cache.pool, cache.block_size
        self.waiting: deque[ServedRequest] = deque()
        self.running: dict[int, ServedRequest] = {}
        self.prefilling: list[ServedRequest] = []
        self.now_s = 0.0
        self.ends_s: float | None = None
        self.tick = self.decoding = self.context_sum = self.preemptions = self.steps = 0
        self.busy = BusyTime()
        self.timeout_s, self.lag_steps, self.done, self._refused = timeout_s, lag_steps, done, refused
        self._starts = [0] * cache.block_size  # sequences that need a block at ticks of each remainder
        self._ends: list[tuple[int, int, ServedRequest]] = []
        self.deadlines: list[tuple[float, int, ServedRequest]] = []
        self._chunks: Chunks = []
        self._leap = 0
        self._idles = False  # nothing runs until what a prompt waits for is back
        self._stalled_s, self._stalled = 0.0, 0

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.waiting)

    def submit(self, request: ServedRequest, now_s: float) -> bool:
        """Take ``request`` in at ``now_s``; True where that moves the end of what is under way."""
        if request.arrival.priority and self.waiting:
            queue_up(self.waiting, request)
        else:
            self.waiting.append(request)
        if self.ends_s is None:
            self.now_s = self.ends_s = max(now_s, self.now_s)
            return True
        if self._idles:
            self.ends_s = now_s
            return True
        if self.lag_steps and self.decoding:
            request.seen_s = now_s + self.lag_steps * self.times.decode_s(
                self.decoding, self.context_sum / self.decoding
            )
        behind = len(self.waiting) > 1 and self.adapters is None  # whose adapter has a slot may enter before the first
        if self._leap < 2 or behind or len(self.running) >= self.most_running:
            return False
        if (steps := self._steps_until(max(now_s, request.seen_s))) >= self._leap:
            return False
        self._leap = steps
        self.ends_s = self.now_s + self.times.run_s(self.decoding, self.context_sum, steps)
        return True

    def advance(self) -> None:
        """Settle what has just ended and start the next step or leap."""
        if self.adapters is not None and not self._idles:
            self.adapters.pending_s = 0.0
        if self._chunks:
            self._end_mixed()
        elif self._leap:
            self._end_leap()
        elif self._idles:
            self.now_s = self.ends_s or self.now_s
        if self.deadlines and self.deadlines[0][0] <= self.now_s:
            give_up(self)
        self._start()

    def _start(self) -> None:
        if self.adapters is not None:
            self.adapters.begin(self.running.values())
        self._chunks, self._leap, self._idles = self.policy.compose(self), 0, False
        while self.waiting and not self._chunks and not self.running:  # what does not enter an empty engine never will
            self._refused(self.waiting.popleft().arrival)
            self._chunks = self.policy.compose(self)
        if self.adapters is not None:
            decodes = not self._chunks or self.policy.decodes_along
            self._longer.more_s = self.adapters.added_s(self.running.values(), self._chunks, decodes=decodes)
        if self._chunks:
            sequences = self.decoding if self.policy.decodes_along else 0
            pieces = [(new, request.computed) for request, new in self._chunks]
            ended = sum(request.computed + new >= request.target for request, new in self._chunks)
            context = self.context_sum / sequences if sequences else 0.0
            self.ends_s = self.now_s + self.times.mixed_s(sequences, context, pieces, ended)
            if self.cache.host is not None:
                self.ends_s = max(self.ends_s, self.cache.host.step_until_s)
        elif self.decoding:
            self._leap = self._longest_leap()
            self.ends_s = self.now_s + self.times.run_s(self.decoding, self.context_sum, self._leap)
        else:
            back_s = next_loaded_s(self.prefilling, self.now_s)
            self._idles = back_s < float("inf")
            self.ends_s = back_s if self._idles else None
        self.gauges.reading(self.now_s, self)

    def _longest_leap(self) -> int:
        ends = self._ends
        while ends[0][2].last_tick != ends[0][0]:
            heapq.heappop(ends)
        steps = min(ends[0][0] - self.tick, _LONGEST_LEAP)
        if not self.policy.reserves and self.blocks_due(steps) > self.pool.free:
            low, high = 1, steps
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.blocks_due(middle) <= self.pool.free else (low, middle)
            steps = low
        if self.adapters is not None and self.adapters.pending_s:
            steps = 1
        if self.prefilling and (back_s := next_loaded_s(self.prefilling, self.now_s)) < float("inf"):
            steps = min(steps, self._steps_until(back_s))
        if self.waiting and self.waiting[0].seen_s > self.now_s:
            steps = min(steps, self._steps_until(self.waiting[0].seen_s))
        if self.deadlines and self.deadlines[0][0] < self.now_s + self.times.run_s(
            self.decoding, self.context_sum, steps
        ):
            steps = min(steps, self._steps_until(max(self.deadlines[0][0], self.now_s)))
        return steps

    def _steps_until(self, then_s: float) -> int:
        """Steps of the leap until the one that is under way at ``then_s`` has ended."""
        return steps_until(self.times, self.decoding, self.context_sum, then_s - self.now_s)

    def blocks_due(self, steps: int) -> int:
        """Blocks that decoding sequences need in the next ``steps`` steps."""
        whole, rest = divmod(steps, self.block_size)
        due = whole * self.decoding
        if rest:
            at = self.tick % self.block_size
            due += sum(self._starts[at : at + rest])
            if at + rest > self.block_size:
                due += sum(self._starts[: at + rest - self.block_size])
        return due

    # what has ended

    def _end_leap(self) -> None:
        assert self.ends_s is not None
        steps, taken_s = self._leap, self.ends_s - self.now_s
        self.busy.decoded(self.decoding, self.context_sum, steps, taken_s, running=len(self.running))
        self._tick(steps, taken_s / steps)
        self.now_s = self.ends_s
        self._finish_due()

    def _end_mixed(self) -> None:
        assert self.ends_s is not None
        taken_s = self.ends_s - self.now_s
        decodes = self.decoding * self.policy.decodes_along
        self.busy.mixed(decodes, self.context_sum, self._chunks, taken_s, running=len(self.running))
        if self.decoding:
            if self.policy.decodes_along:
                self._tick(1, taken_s)
            else:
                self._stalled = self._stalled or self.decoding
                self._stalled_s += taken_s
        self.now_s = self.ends_s
        for request, new in self._chunks:
            request.computed += new
            if request.computed >= request.target:
                self.begin_decoding(request)
        if self._ends:
            self._finish_due()

    def _tick(self, steps: int, step_s: float) -> None:
        """All decoding sequences grow by ``steps`` tokens, ``step_s`` apart."""
        if not self.policy.reserves:
            due = self.blocks_due(steps)
            if due:
                self.pool.take(due)
        self.tick += steps
        self.context_sum += steps * self.decoding
        self.steps += steps
        if self._stalled_s:
            stalled = min(self._stalled, self.decoding)
            self.gauges.gaps.add_many(step_s + self._stalled_s, stalled)
            self.gauges.gaps.add_many(step_s, steps * self.decoding - stalled)
            self._stalled_s, self._stalled = 0.0, 0
        else:
            self.gauges.gaps.add_many(step_s, steps * self.decoding)

    def begin_decoding(self, request: ServedRequest) -> None:
        """The prompt of ``request`` has ended, with a token."""
        self.prefilling.remove(request)
        request.made += 1
        if request.first_s < 0:
            request.first_s = self.now_s
        else:
            self.gauges.gaps.add_many(self.now_s - request.last_s, 1)
        if request.made >= request.osl:
            self.cache.release(request, leaves=request.target)
            self._end(request)
            return
        request.joined, request.length = self.tick, request.isl + request.made
        request.last_tick = self.tick + request.osl - request.made
        heapq.heappush(self._ends, (request.last_tick, request.index, request))
        self.decoding += 1
        self.context_sum += request.length
        self._starts[(self.tick - request.length + 1) % self.block_size] += 1

    def _finish_due(self) -> None:
        ends, tick = self._ends, self.tick
        while ends and ends[0][0] <= tick:
            last_tick, _, request = heapq.heappop(ends)
            if request.last_tick == last_tick:
                length = self.stop_decoding(request)
                self.cache.release(request, leaves=length - 1)
                self._end(request)

    def stop_decoding(self, request: ServedRequest) -> int:
        """Tokens of ``request``, which decodes no more."""
        grown = self.tick - request.joined
        length = request.length + grown
        request.made += grown
        request.last_tick = -1
        self.decoding -= 1
        self.context_sum -= length
        self._starts[(request.joined - request.length + 1) % self.block_size] -= 1
        if not self.policy.reserves:
            request.blocks = -(-(length - 1) // self.block_size) - request.shared_blocks
        return length

    def _end(self, request: ServedRequest) -> None:
        del self.running[request.index]
        request.finish_s = self.now_s
        self.done(request, self.now_s)

    # what policies ask for

    def head(self) -> ServedRequest | None:
        """The request that waits longest; those whose clients are gone leave."""
        while self.waiting:
            request = self.waiting[0]
            if self.now_s < request.arrival.arrival_s + self.timeout_s:
                return request if request.seen_s <= self.now_s or not self.running else None
            self.done(self.waiting.popleft(), self.now_s)
        return None

    def admit(self, request: ServedRequest) -> None:
        """``request``, whose blocks are held, is prefilled from now on."""
        if self.adapters is not None:
            self.adapters.admit(request.arrival.adapter)
        request.entered_s = self.now_s if request.entered_s < 0 else request.entered_s
        self.running[request.index] = request
        self.prefilling.append(request)
        if self.timeout_s < float("inf"):
            heapq.heappush(self.deadlines, (request.arrival.arrival_s + self.timeout_s, request.index, request))

    def preempt(self) -> ServedRequest:
        """Throw out the request that entered last; it starts again when there is room, with what is left of its blocks."""
        _, request = self.running.popitem()
        if request.last_tick >= 0:
            leaves = self.stop_decoding(request) - 1
        else:
            self.prefilling.remove(request)
            leaves = request.computed
        self.cache.release(request, leaves=leaves)
        request.target, request.computed, request.received = request.isl + request.made, 0, 0
        request.loaded_s = -1.0
        request.preempted += 1
        request.last_s = self.now_s
        self.preemptions += 1
        self.waiting.appendleft(request)
        return request

    def stop(self, now_s: float) -> None:
        """Nothing is under way any more."""
        self._chunks, self._leap, self._idles, self.ends_s, self.now_s = [], 0, False, None, now_s
