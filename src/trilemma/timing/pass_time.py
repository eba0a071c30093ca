"""Seconds of one forward pass as named exposed lines, and the tally that adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats.computing import EXPANDED
from trilemma.quantities import Numbers
from trilemma.timing.attention import OperatorWork
from trilemma.timing.host_weights import HOST_LINES
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ExpertProducts, Products
from trilemma.timing.roofline import is_compute_bound, operator_time_s

#: Lines of a pass in the order in which they are shown.
PASS_LINES = (
    "dense", "norms", "experts", "attention", "lm_head", *HOST_LINES, "all_reduce", "expert_exchange", "context_exchange",
    "pipeline", "kernels", "host",
)  # fmt: skip
#: Resources of work on the cards, and lines that pass beside it.
_ON_CARDS = ("compute", "memory_bandwidth")
_BESIDE = ("kernels", "host")
RESOURCES = ("compute", "memory_bandwidth", "interconnect", "host")


@dataclass(frozen=True, kw_only=True, slots=True)
class LineWork:
    """What a line computes and moves, ``repeats`` times in the seconds that it takes; ``computed_in`` names its peak."""

    line: str
    computed_in: str
    work: OperatorWork
    repeats: Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class PassTime:
    """Exposed seconds of one pass by (line, resource that binds); lines and resources both sum to the total.

    ``works`` are FLOPs and bytes behind the lines that have any. The datasheet roof of each line is the same pass on
    `Machine.at_datasheet`; ``computing_s`` what the FLOPs of the cards take at their peak. All of it counts ``overlapped`` times
    what it would take one stage after another: micro-batches of one pass that are in different stages at once.
    """

    parts: Mapping[tuple[str, str], Numbers]
    works: tuple[LineWork, ...] = ()
    computing_s: Numbers = 0.0
    overlapped: Numbers = 1.0

    @property
    def lines(self) -> dict[str, Any]:
        """Seconds by line, in the order in which lines are shown."""
        return {name: self._sum(0, name) for name in PASS_LINES if any(line == name for line, _ in self.parts)}

    @property
    def resources(self) -> dict[str, Any]:
        return {name: self._sum(1, name) for name in RESOURCES}

    def binding(self, line: str) -> str:
        """The resource that takes most of ``line``, of one plan."""
        return max(RESOURCES, key=lambda name: float(np.asarray(self.parts.get((line, name), 0.0))))

    @property
    def total_s(self) -> Any:
        return sum(self.parts.values(), start=np.float64(0.0))

    @property
    def beside_s(self) -> Any:
        """Seconds of launches and the host, which passes that run as one have in common; a number or an array."""
        return sum((self._sum(0, name) for name in _BESIDE), start=np.float64(0.0))

    def _sum(self, at: int, name: str) -> Any:
        return sum((seconds for key, seconds in self.parts.items() if key[at] == name), start=np.float64(0.0))


class OperatorTally:
    """Adds operators up by line and by binding resource."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parts: dict[tuple[str, str], Any] = {}
        self.works: list[LineWork] = []
        self.roof_s: Any = np.float64(0.0)
        self.computing_s: Any = np.float64(0.0)
        self.joined_s: Any = np.float64(0.0)
        self.overlapped: Any = 1.0

    def add(self, line: str, resource: str, seconds: Any) -> None:
        self.parts[line, resource] = self.parts.get((line, resource), np.float64(0.0)) + seconds

    def at_least(self, line: str, resource: str, seconds: Any) -> None:
        """What ``seconds`` exceed the pass by so far, as ``line``: others run behind it."""
        passed = sum(self.parts.values(), start=np.float64(0.0))
        self.add(line, resource, np.maximum(np.asarray(seconds) - passed, 0.0))

    def operator(
        self,
        line: str,
        work: OperatorWork,
        *,
        computed_in: str,
        share: Any,
        bytes_per_s: Any,
        scale: Numbers = 1.0,
        bits: float = 16.0,
    ) -> None:
        """Adds one operator that reaches ``share`` of the peak of ``computed_in``, its weights stored in ``bits``."""
        self.moved(line, work, computed_in=computed_in, repeats=scale)
        machine = self.machine
        peak = machine.roof_flops(computed_in, bits)
        computing_s = work.flops / peak * scale
        self.computing_s = self.computing_s + computing_s
        self.roof_s = self.roof_s + np.maximum(computing_s, work.bytes / machine.bandwidth * scale)
        flops_per_s = peak if machine.ideal else peak * share
        power = self.machine.coefficients.overlap_power
        rates = {"flops_per_s": flops_per_s, "bytes_per_s": bytes_per_s}
        seconds = operator_time_s(work.flops, work.bytes, power=power, **rates) * scale
        bound = is_compute_bound(work.flops, work.bytes, **rates)
        self.add(line, "compute", np.where(bound, seconds, 0.0))
        self.add(line, "memory_bandwidth", np.where(bound, 0.0, seconds))

    def product(
        self,
        line: str,
        product: Products | ExpertProducts,
        work: OperatorWork,
        *,
        share: Numbers = 1.0,
        stream: Numbers = 1.0,
        scale: Numbers = 1.0,
    ) -> None:
        machine = self.machine
        if product.bits < 16 and product.computed_in == EXPANDED:
            share, stream = share * machine.coefficients.expanded_matmul, stream * machine.coefficients.expanded_stream
        share = share * machine.int8_share(product.bits)
        self.operator(
            line,
            work,
            computed_in=product.computed_in,
            share=machine.coefficients.matmul_share(product.computed_in) * share,
            bits=product.bits,
            bytes_per_s=machine.bandwidth * np.minimum(machine.coefficients.stream_share(product.bits) * stream, 1.0),
            scale=scale,
        )

    def moved(self, line: str, work: OperatorWork, *, computed_in: str, repeats: Numbers) -> None:
        self.works.append(LineWork(line=line, computed_in=computed_in, work=work, repeats=repeats))

    def join(self, other: PassTime) -> None:
        """The same pass through other cards, its start and the way to them counted already."""
        for (line, resource), seconds in other.parts.items():
            if line not in ("host", "pipeline"):
                self.add(line, resource, seconds)
                self.joined_s = self.joined_s + seconds
        self.works += other.works
        self.computing_s = self.computing_s + other.computing_s

    def done(self) -> PassTime:
        """The pass, no faster than the roofs of its operators one after another.

        Fitted shares may tell one operator too fast where another is told too slow; the whole may not be. What is missing is
        added to the operators in proportion.
        """
        on_cards = {key: s for key, s in self.parts.items() if key[1] in _ON_CARDS}
        worked_s = sum(on_cards.values(), start=np.float64(0.0))
        beside_s = sum((s for key, s in self.parts.items() if key[0] in _BESIDE), start=np.float64(0.0))
        short_s = self.roof_s - (worked_s + beside_s - self.joined_s)
        if np.any(short_s > 0):
            longer = 1.0 + np.maximum(short_s, 0.0) / worked_s
            self.parts |= {key: seconds * longer for key, seconds in on_cards.items()}
        return PassTime(
            parts=dict(self.parts), works=tuple(self.works), computing_s=self.computing_s, overlapped=self.overlapped
        )


def token_parts(
    step: PassTime, prefill: PassTime, drafting_s: Any, per_token: Any, prefill_s: Any
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Lines and resources of a token's time: its part of a step, and of the prefills of others.

    Seconds, in the shape of the passes. Source: by definition, `PassTime`.
    """
    lines: dict[str, Any] = {name: seconds * per_token for name, seconds in step.lines.items()}
    resources: dict[str, Any] = {name: seconds * per_token for name, seconds in step.resources.items()}
    if np.any(drafting_s):
        lines["draft"] = drafting_s * per_token
        resources["memory_bandwidth"] = resources["memory_bandwidth"] + lines["draft"]
    lines["prefill"] = prefill_s
    share = prefill_s / prefill.total_s
    for resource, seconds in prefill.resources.items():
        resources[resource] = resources[resource] + seconds * share
    return lines, resources
