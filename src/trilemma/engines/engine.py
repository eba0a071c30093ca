"""A serving engine to the floors above: one class, whose parts are modules of the engine's own package.

A package holds ``budget`` (its memory at start-up), ``facts`` (its rules by version), ``flags``, ``read`` and ``write`` (its
command line), and where it has them ``deploy`` (files that start it) and ``remedies``. Each is imported when it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from trilemma.engines.base import EngineCommand, Stage, StartUp
from trilemma.engines.coefficients import NOT_NUMBERS, ChangedRows
from trilemma.formats import catalogue
from trilemma.plans import Draft, Layout, Plan, ServeOptions

if TYPE_CHECKING:
    from trilemma.commands.flags import FlagTable
    from trilemma.hardware.accelerator import Accelerator
    from trilemma.memory.adapter_slots import AdapterSlots
    from trilemma.models.architecture import Model

#: (what is changed, the options that result, cost, quality of answers)
Offer = tuple[str, ServeOptions, float, str]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine by its registered ``name``; ``package`` is where its parts stand."""

    name: str
    package: str

    def start_up(
        self, *, model: Model, accelerator: Accelerator, layout: Layout, options: ServeOptions, draft: Draft | None = None,
        version: str | None = None, free_bytes: float | None = None, capacity_bytes: float | None = None,
        date: str | None = None, cards: Sequence[Accelerator] = (), changed: ChangedRows | None = None,
    ) -> StartUp:  # fmt: skip
        """What the engine does with a card's memory when it starts, per GPU of the tightest rank.

        ``layout`` and ``options.max_seqs``, ``options.max_batched_tokens`` may be arrays (plans,); the answer has their
        shape. ``capacity_bytes`` replaces the card's runtime total; ``free_bytes`` is what other processes leave of it.
        ``version`` (or the release of ``date``) chooses the facts. ``cards`` name each card where their kinds differ; rows
        ``changed`` replace coefficients shipped.
        Raises `InputError` for values that no engine accepts.
        """
        from trilemma.engines.start_up import Asked, start_up

        asked = Asked(
            model=model, accelerator=accelerator, layout=layout, options=options, draft=draft, version=version,
            free_bytes=free_bytes, capacity_bytes=capacity_bytes, date=date, cards=cards, changed=changed,
        )  # fmt: skip
        return start_up(self._part("budget").RULES, asked)

    def likeliest_stage(self, start: StartUp) -> tuple[Stage, float]:
        """See `trilemma.engines.verdict.likeliest`."""
        from trilemma.engines.verdict import likeliest

        stage, probability = likeliest(start)
        return stage, probability

    def feasible_fraction(self, start: StartUp) -> tuple[Any, Any] | None:
        """See `trilemma.engines.verdict.feasible_fraction`."""
        from trilemma.engines.verdict import feasible_fraction

        return feasible_fraction(start)

    def read(self, argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
        """The plan that a command line of the engine asks for. Raises `InputError` naming flag, value and remedy."""
        return cast(EngineCommand, self._part("read").read(argv, version=version))

    def named_weights(self, name: str) -> str | None:
        """What ``name:tag`` of the engine's own library holds, size and mix stated; None where it is no such name."""
        if ":" not in name or "/" in name:
            return None
        library = getattr(self._part("read"), "weights_of", None)
        return None if library is None else str(library(name))

    def name_in_library(self, name: str) -> str | None:
        """How the engine's own library spells a catalogued ``name``; None where it has no library or no such name."""
        spelled = getattr(self._part("read"), "spelled_there", None)
        return None if spelled is None else spelled(name)

    def write(self, *, model: str, plan: Plan) -> list[str]:
        """The words of the command that runs ``plan``. Raises `InputError` for a plan that the engine cannot run."""
        return cast("list[str]", self._part("write").write(model=model, plan=plan))

    def line(self, *, model: str, plan: Plan, more: Sequence[str] = (), variables: Sequence[str] = ()) -> str:
        """`write` as a line for a shell, ``more`` words after it and ``variables`` (NAME=value) before: with what has to be
        done before and after it, and the files that it names."""
        from trilemma.commands.named_files import line_of

        words = [*variables, *self.write(model=model, plan=plan), *more]
        around = getattr(self._part("write"), "around", None)
        before, after = around(model, words) if around is not None else ((), ())
        return line_of([*before, words, *after])

    def flags(self) -> FlagTable:
        """The flags of the engine's command line."""
        return cast("FlagTable", self._part("flags").table())

    def facts(self, version: str | None) -> dict[str, tuple[Any, str]]:
        """Fact or coefficient of memory → (value, source) at ``version``."""
        facts = self._part("facts").for_version(version)
        found = {name: (getattr(facts, name), source) for name, source in facts.sources.items()}
        for table, numbers in facts.coefficients.items():
            named = {f"{table}.{name}": value for name, value in numbers.items() if name not in NOT_NUMBERS}
            found |= {name: (value, numbers["source"]) for name, value in named.items()}
        return found

    def adapter_slots(self, options: ServeOptions, *, version: str | None) -> AdapterSlots | None:
        """The slots for adapters that ``options`` ask for; None without, and where no rules of the engine for them are known."""
        if find_spec(f"{self.package}.adapters") is None:
            return None
        facts = self._part("facts").for_version(version)
        found, _ = self._part("adapters").adapter_slots(options, facts, dtype=catalogue.get("bf16"))
        return cast("AdapterSlots | None", found)

    def changes(self, plan: Plan, model: Model, fits: Callable[[ServeOptions], bool]) -> list[Offer]:
        """What the engine itself can change about a plan that does not fit, in order of cost; ``fits`` says what would."""
        if find_spec(f"{self.package}.remedies") is None:
            return []
        return cast("list[Offer]", self._part("remedies").changes(plan, model, fits))

    def _part(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")
