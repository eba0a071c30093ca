"""Seconds of a step, looked up: the timing functions asked once on a grid, then a few additions a step.

Products depend on the rows of a step alone, attention on lengths, so a step of any mixture is the sum of table entries. Decode
steps are tabled whole, exactly at every number of sequences; between lengths they are read off a line, which is what attention
costs. The table is within 1 % of the functions it was made from (tested).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from trilemma.estimate.timed_plan import TimedPlan
from trilemma.timing.forward_pass import decode_step, outlasting_s, prefill_pass
from trilemma.timing.mixed_step import mixed_step

#: Grid points for each doubling of a length, and the shortest length with a point of its own.
_AN_OCTAVE, _SHORTEST = 4, 16
#: Rows of a step up to which each number has its own entry; beyond, one in so many.
_EXACT_ROWS, _ROW_STRIDE = 16384, 32
#: Sequences that are tabled at a time.
_SEQUENCES_AT_ONCE = 64


class Steps(Protocol):
    """What an engine asks of time."""

    def decode_s(self, sequences: int, context: float) -> float: ...

    def run_s(self, sequences: int, context_sum: float, steps: int) -> float: ...

    def mixed_s(self, sequences: int, context: float, chunks: Iterable[tuple[int, int]], ended: int) -> float: ...


class StepTimes:
    """Seconds of decode steps, of prefills, and of steps that do both, for one attention replica of a plan.

    ``most_tokens`` of a step and ``most_context`` of a sequence bound what is asked. Lengths are tokens, times seconds.
    """

    def __init__(self, timed: TimedPlan, *, most_sequences: int, most_tokens: int, most_context: int) -> None:
        self._timed, self._factor = timed, 1.0
        self._of_sequences: Callable[[float], float] | None = None
        self._most_sequences = most_sequences
        self._stages = int(np.max(timed.layout.pp))
        guess = timed.speculation
        self._verified = 1 if guess is None else guess.verified
        self._per_token = 1.0 if guess is None else 1.0 / guess.tokens_per_step
        grid = [0.0]
        while grid[-1] < most_context:
            grid.append(float(_SHORTEST) * 2.0 ** ((len(grid) - 1) / _AN_OCTAVE))
        self._lengths = grid
        self._inverse = [1.0 / (high - low) for low, high in pairwise(grid)]
        self._decode: list[list[float]] = [[0.0] * len(grid)]
        self._joint = timed.work.host is None and not timed.work.beside
        self._whole = self._joint and self._stages == 1 and guess is None
        self._reads = self._read_times() if self._whole else []
        self._norms_s = 0.0  # of a token of a prompt
        self._rows = self._row_times(most_tokens + most_sequences * self._verified)
        self._tail = self._tail_times(most_sequences * 2)
        numbers = timed.machine.coefficients
        self._host = [float(numbers.sequence_s) * sequences for sequences in range(most_sequences * 2 + 1)]
        self._start = [float(numbers.step_s)] * len(self._host)
        self._power = float(numbers.host_overlap_power)
        self._attention = _PromptAttention(timed, most_tokens=most_tokens, most_context=most_context)

    def decode_s(self, sequences: int, context: float) -> float:
        """Seconds in which each of ``sequences`` that are ``context`` tokens long in the mean gets its next token."""
        if sequences >= len(self._decode):
            self._table_more(sequences)
        return self._between(self._decode[sequences], context)

    def _between(self, row: list[float], context: float) -> float:
        """The value of ``row`` at a length, between its grid points."""
        at = 0
        if context > _SHORTEST:
            at = min(int(_AN_OCTAVE * math.log2(context / _SHORTEST)) + 1, len(self._inverse) - 1)
        low = row[at]
        return low + (row[at + 1] - low) * (context - self._lengths[at]) * self._inverse[at]

    def run_s(self, sequences: int, context_sum: float, steps: int) -> float:
        """Seconds of ``steps`` decode steps in a row: each makes all sequences a token longer, their cost grows along a line."""
        return steps * self.decode_s(sequences, context_sum / sequences + (steps - 1) / 2)

    def mixed_s(self, sequences: int, context: float, chunks: Iterable[tuple[int, int]], ended: int) -> float:
        """Seconds of a step that decodes ``sequences`` and prefills ``chunks`` of (new, cached) tokens, ``ended`` of which end
        their prompt."""
        attention_s, tokens = 0.0, 0  # and of norms, by prompts alone as well
        for new, cached in chunks:
            attention_s += self._attention.seconds(new, cached) + new * self._norms_s
            tokens += new
        if not sequences:
            return self._with_host(self._rows[tokens] + self._tail[ended] + attention_s, ended)
        if self._whole:
            read_s = sequences * self._between(self._reads, context)
            cards_s = self._rows[sequences + tokens] + self._tail[sequences + ended] + read_s + attention_s
            return self._with_host(cards_s, sequences + ended)
        step_s = self.decode_s(sequences, context)
        if not self._joint:
            return step_s + (self._rows[tokens] + attention_s) * self._interference
        rows = max(sequences * self._verified // self._stages, 1)
        more_s = self._rows[rows + tokens] - self._rows[rows] + self._tail[sequences + ended] - self._tail[sequences]
        return step_s + (more_s + attention_s) / self._stages

    def _with_host(self, cards_s: float, sequences: int) -> float:
        """``cards_s``, the start of a step, and what the host's work for ``sequences`` outlasts the cards."""
        if not self._joint:
            return cards_s
        later_s: float = outlasting_s(cards_s, self._host[sequences], self._power)
        return cards_s + self._start[sequences] + later_s

    def scaled(self, factor: float) -> StepTimes:
        """The same steps, each ``factor`` times as long."""
        other = copy.copy(self)
        other._factor = self._factor * factor
        other._rows, other._tail, other._reads, other._host, other._start = (
            [one * factor for one in times] for times in (self._rows, self._tail, self._reads, self._host, self._start)
        )
        other._attention, other._norms_s = self._attention.scaled(factor), self._norms_s * factor
        other._decode = [[one * factor for one in row] for row in self._decode]
        return other

    def calibrated(self, factor: Callable[[float], float]) -> StepTimes:
        """The same steps, each ``factor`` of its rows times as long: reads of the cache as the sequences that make them."""
        other = copy.copy(self)
        other._rows = [one * factor(rows) for rows, one in enumerate(self._rows)]
        other._tail = [one * factor(rows) for rows, one in enumerate(self._tail)]
        other._reads = [one * factor(1.0) for one in self._reads]
        other._host, other._start = (
            [one * factor(sequences) for sequences, one in enumerate(times)] for times in (self._host, self._start)
        )
        other._attention = self._attention.scaled(factor(float(len(self._rows))))
        other._decode = [[one * factor(at) for one in row] for at, row in enumerate(self._decode)]
        other._of_sequences = factor
        return other

    @property
    def _interference(self) -> float:
        return float(np.asarray(self._timed.machine.coefficients.interference))

    def _table_more(self, sequences: int) -> None:
        """Rows of the decode table up to ``sequences`` and some more."""
        first = len(self._decode)
        last = max(min(first + _SEQUENCES_AT_ONCE, self._most_sequences + 1), sequences + 1)
        batch = np.arange(first, last)[:, None]
        timed = self._timed
        step = decode_step(
            timed.work, timed.machine, timed.layout, batch=batch, context=np.array(self._lengths)[None, :],
            kv_format=timed.kv_format, tokens=self._verified,
        )  # fmt: skip
        seconds: Any = step.total_s
        if timed.speculation is not None:
            seconds = (seconds + timed.speculation.drafting_s(step, timed.work.layers)) * self._per_token
        more = np.broadcast_to(seconds * self._factor, (last - first, len(self._lengths)))
        if self._of_sequences is not None:
            more = more * np.array([self._of_sequences(at) for at in range(first, last)])[:, None]
        self._decode += more.tolist()

    def _read_times(self) -> list[float]:
        """Seconds of attention of one sequence that decodes, by its length."""
        timed = self._timed
        step = decode_step(
            timed.work, timed.machine, timed.layout, batch=1, context=np.array(self._lengths), kv_format=timed.kv_format
        )
        seconds: list[float] = np.broadcast_to(step.lines.get("attention", 0.0), len(self._lengths)).tolist()
        return seconds

    def _row_times(self, most: int) -> list[float]:
        """Seconds of everything but attention and what a step costs by its sequences, by its rows."""
        rows = np.unique(
            np.r_[np.arange(1, min(most, _EXACT_ROWS) + 1), np.arange(_EXACT_ROWS, most, _ROW_STRIDE), most]
        )
        timed = self._timed
        passes: dict[str, Any] = {"cached": 0, "kv_format": timed.kv_format}
        by_sequence: tuple[str, ...] = ("attention", "norms")
        if self._joint:
            lines = mixed_step(
                timed.work, timed.machine, timed.layout, batch=0, context=1, tokens=rows, prompts=1, **passes
            ).lines
            by_sequence = ("attention", "norms", "lm_head", "host")
        else:
            lines = prefill_pass(timed.work, timed.machine, timed.layout, tokens=rows, **passes).lines
        self._norms_s = float(np.asarray(lines["norms"]).flat[-1] / rows[-1]) if "norms" in lines else 0.0
        seconds = sum(np.broadcast_to(value, rows.shape) for name, value in lines.items() if name not in by_sequence)
        found: list[float] = np.interp(np.arange(most + 1), rows, np.asarray(seconds)).tolist()
        found[0] = found[1] if self._joint else 0.0
        return found

    def _tail_times(self, most: int) -> list[float]:
        """Seconds of the output head, by sequences that get a token."""
        timed = self._timed
        if not self._joint:
            return [0.0] * (most + 1)
        one = mixed_step(
            timed.work, timed.machine, timed.layout, batch=np.arange(most + 1), context=1, tokens=0, cached=0, prompts=0,
            kv_format=timed.kv_format,
        )  # fmt: skip
        tail: list[float] = np.broadcast_to(one.lines["lm_head"], most + 1).tolist()
        return tail


class _PromptAttention:
    """Seconds of attention in one chunk of a prompt, by its new and its cached tokens: powers of both, nearly, so logarithms
    are read off a plane."""

    def __init__(self, timed: TimedPlan, *, most_tokens: int, most_context: int) -> None:
        new = 2.0 ** (np.arange(int(_AN_OCTAVE * math.log2(max(most_tokens, 2))) + 3) / _AN_OCTAVE)
        cached = 2.0 ** (np.arange(int(_AN_OCTAVE * math.log2(max(most_context, 2))) + 3) / _AN_OCTAVE) - 1.0
        one = prefill_pass(
            timed.work, timed.machine, timed.layout, tokens=new[:, None], cached=cached[None, :],
            kv_format=timed.kv_format,
        )  # fmt: skip
        seconds = np.broadcast_to(one.lines["attention"], (len(new), len(cached)))
        self._none = not np.any(seconds > 0)
        self._logarithms: list[list[float]] = np.log(np.maximum(seconds, 1e-12)).tolist()

    def scaled(self, factor: float) -> _PromptAttention:
        other = copy.copy(self)
        other._logarithms = [[one + math.log(factor) for one in row] for row in self._logarithms]
        return other

    def seconds(self, new: int, cached: int) -> float:
        if self._none:
            return 0.0
        x, y = _AN_OCTAVE * math.log2(new), _AN_OCTAVE * math.log2(cached + 1)
        i, j = int(x), int(y)
        x, y = x - i, y - j
        low, high = self._logarithms[i], self._logarithms[i + 1]
        before = low[j] + (high[j] - low[j]) * x
        return math.exp(before + (low[j + 1] + (high[j + 1] - low[j + 1]) * x - before) * y)
