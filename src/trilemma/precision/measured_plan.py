"""Allocations proposed by sensitivities and settled by measurement: the whole plan is run again, and uniform formats compete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.precision.allocate import Allocation, Frontier, Problem, greedy, uniforms

if TYPE_CHECKING:
    import torch

    from trilemma.precision.emulation import Emulator, Quality

#: The additive model fails for formats of few bits, so proposals without them compete too: the fewest bits allowed in each.
_FEWEST_BITS = (0.0, 3.0, 4.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform:
    """One format for every group, measured."""

    format: str
    bytes: int
    calibration: Quality
    held_out: Quality


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetChoice:
    """What was settled on for one budget.

    ``chosen`` was the best of all proposals on the calibration tokens; ``exact`` and ``greedy`` are the two solutions of the
    additive model over all formats. ``best_uniform`` is the uniform format within the budget that does best on the held-out
    tokens; None where none fits.
    """

    budget_bytes: int
    chosen: Allocation
    exact: Allocation
    greedy: Allocation
    calibration: Quality
    held_out: Quality
    best_uniform: Uniform | None

    @property
    def against_uniform(self) -> float | None:
        """KL of the chosen plan over that of the best uniform format, on held-out tokens."""
        return None if self.best_uniform is None else self.held_out.kl / self.best_uniform.held_out.kl


class Settling:
    """Measures allocations on calibration and held-out tokens, each only once."""

    def __init__(self, problem: Problem, calibration: Emulator, held_out: Emulator) -> None:
        import torch

        self.problem = problem
        self._runs = {"calibration": calibration, "held_out": held_out}
        with torch.inference_mode():
            self._references: dict[str, torch.Tensor] = {name: run.hidden() for name, run in self._runs.items()}
        self._known: dict[tuple[str, tuple[str, ...]], Quality] = {}
        parts = [_with_bits(problem, bits) for bits in _FEWEST_BITS]
        self._frontiers = [Frontier(part) for part in dict.fromkeys(parts) if part is not None]
        self._uniforms: list[Uniform] | None = None

    @property
    def frontier(self) -> Frontier:
        """Of the additive model over all formats."""
        return self._frontiers[0]

    def quality(self, formats: Mapping[str, str], tokens: str) -> Quality:
        """How good an allocation is on the ``calibration`` or ``held_out`` tokens."""
        from trilemma.precision.emulation import EmulatedFormats

        key = (tokens, tuple(formats[group] for group in self.problem.groups))
        if key not in self._known:
            self._known[key] = self._runs[tokens].quality(EmulatedFormats(weights=formats), self._references[tokens])
        return self._known[key]

    def uniforms(self) -> list[Uniform]:
        """Every uniform format, smallest first."""
        if self._uniforms is None:
            self._uniforms = [
                Uniform(
                    format=one.how.removeprefix("uniform "), bytes=one.bytes,
                    calibration=self.quality(one.formats, "calibration"), held_out=self.quality(one.formats, "held_out"),
                )
                for one in uniforms(self.problem)
            ]  # fmt: skip
        return self._uniforms

    def settle(self, budget_bytes: int) -> BudgetChoice:
        """The best proposal within ``budget_bytes``. Raises `InputError` where the smallest formats do not fit."""
        exact, quick = self.frontier.within(budget_bytes), greedy(self.problem, budget_bytes)
        proposals = [exact, quick]
        proposals += [other.within(budget_bytes) for other in self._frontiers[1:] if other.bytes[0] <= budget_bytes]
        fitting = [one for one in self.uniforms() if one.bytes <= budget_bytes]
        if fitting:
            best = min(fitting, key=lambda one: one.calibration.kl)
            proposals.append(next(one for one in uniforms(self.problem) if one.how == f"uniform {best.format}"))
        chosen = min(proposals, key=lambda one: self.quality(one.formats, "calibration").kl)
        return BudgetChoice(
            budget_bytes=budget_bytes,
            chosen=chosen,
            exact=exact,
            greedy=quick,
            calibration=self.quality(chosen.formats, "calibration"),
            held_out=self.quality(chosen.formats, "held_out"),
            best_uniform=min(fitting, key=lambda one: one.held_out.kl) if fitting else None,
        )

    def settle_loss(self, most_kl: float, *, steps: int = 12) -> BudgetChoice:
        """The fewest bytes whose *measured* KL on the calibration tokens is at most ``most_kl``, by halving budgets.

        Raises `InputError` where even the widest formats lose more.
        """
        low, high = self.problem.least_bytes, int(self.frontier.bytes[-1])
        best = self.settle(high)
        if best.calibration.kl > most_kl:
            raise InputError(
                f"a loss of {most_kl:g} nats is below the {best.calibration.kl:.3g} measured with the widest formats;"
                " allow more or add wider formats"
            )
        for _ in range(steps):
            if high - low <= 1:
                break
            middle = (low + high) // 2
            found = self.settle(middle)
            if found.calibration.kl <= most_kl:
                best, high = found, middle
            else:
                low = middle
        return best


def midway_budgets(settling: Settling) -> list[int]:
    """Budgets midway between uniform formats that are neighbours in bytes and better than every smaller one."""
    useful: list[Uniform] = []
    for one in settling.uniforms():
        if not useful or (one.calibration.kl < useful[-1].calibration.kl and one.bytes > useful[-1].bytes):
            useful.append(one)
    return [(low.bytes + high.bytes) // 2 for low, high in pairwise(useful)]


def _with_bits(problem: Problem, least: float) -> Problem | None:
    formats: Sequence[str] = [option.format for options in problem.options for option in options]
    return problem.only(name for name in dict.fromkeys(formats) if catalogue.get(name).bits >= least)


def plan_rules(formats: Mapping[str, str]) -> list[dict[str, object]]:
    """Rules of a plan file that give groups of a decoder (``3.ffn.down``, ``embedding``) their formats, by role and layer."""
    by_rule: dict[tuple[str, str], list[str]] = {}
    for group, fmt in formats.items():
        layer, _, role = group.partition(".")
        by_rule.setdefault((role, fmt) if layer.isdecimal() else (group, fmt), []).extend(
            [layer] if layer.isdecimal() else []
        )
    members = {"attention.qkv": ["attention.q", "attention.k", "attention.v"], "ffn.gate_up": ["ffn.gate", "ffn.up"]}
    return [
        {"roles": members.get(role, [role]), **({"layers": layers} if layers else {}), "weights": fmt}
        for (role, fmt), layers in by_rule.items()
    ]
