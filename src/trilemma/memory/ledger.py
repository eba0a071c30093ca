"""A ledger: named lines that sum exactly to the total shown, each able to explain itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from trilemma.columns import column
from trilemma.errors import TrilemmaError
from trilemma.quantities import Numbers

#: The fixed order in which memory lines are listed.
MEMORY_LINES = (
    "weights", "adapter", "draft_model", "vision", "gradients", "master_weights", "optimizer", "reference_models", "critic",
    "activations", "logits", "kv_cache", "state_cache", "cuda_graphs", "workspace", "communication", "libraries",
    "context", "offload_buffers", "generation_engine", "fragmentation",
)  # fmt: skip

Budget = Literal["inside", "outside"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a ledger, for one plan (numbers) or a table of plans (arrays of one shape), in whole bytes: rounded here,
    before anything is summed, the bounds outwards.

    ``low`` and ``high`` bound the line alone (90 %); bounds of lines do not add up to those of the total.
    ``budget`` says whether the engine counts the line inside the memory fraction that it gives itself.
    ``formula`` is the rule in words and symbols, ``inputs`` the values put in, ``source`` where constants come from.
    """

    name: str
    bytes: Numbers = field(metadata=column(whole=True))
    low: Numbers = field(metadata=column("low_bytes", whole=True))
    high: Numbers = field(metadata=column("high_bytes", whole=True))
    budget: Budget = "inside"
    formula: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict, metadata=column(explained=True))
    source: str = field(default="", metadata=column(explained=True))

    def __post_init__(self) -> None:
        if self.name not in MEMORY_LINES:
            raise TrilemmaError(f"no memory line is called {self.name!r}; use one of {', '.join(MEMORY_LINES)}")
        whole = np.rint(self.bytes)
        object.__setattr__(self, "bytes", whole)
        object.__setattr__(self, "low", np.minimum(np.floor(self.low), whole))
        object.__setattr__(self, "high", np.maximum(np.ceil(self.high), whole))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Lines in their fixed order; every figure is bytes per GPU of the worst rank."""

    lines: tuple[Line, ...] = field(metadata=column("items"))

    def __post_init__(self) -> None:
        order = [MEMORY_LINES.index(line.name) for line in self.lines]
        if len(set(order)) != len(order):
            raise TrilemmaError("a ledger holds each line once")
        object.__setattr__(self, "lines", tuple(sorted(self.lines, key=lambda line: MEMORY_LINES.index(line.name))))

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def __getitem__(self, name: str) -> Line:
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(name)

    def get(self, name: str) -> Line | None:
        return next((line for line in self.lines if line.name == name), None)

    def total(self, budget: Budget | None = None) -> Any:
        """Sum of the lines, of all or of one side of the engine's budget."""
        chosen = [line.bytes for line in self.lines if budget is None or line.budget == budget]
        return sum(chosen, start=0) if chosen else np.int64(0)
