"""The linear layers of a plan by module name, and patterns that name many of them at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trilemma.foreign_words import written
from trilemma.formats.formats import Format
from trilemma.precision.plan import PrecisionPlan

_NUMBER = re.compile(r"\.(\d+)\.")
_EXPERT = ".experts.0."
#: Layer numbers in one pattern; longer alternatives would exceed what readers take.
_MOST_NUMBERS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """One linear layer (the experts of a layer are one, named by the first) or table, and its formats."""

    name: str
    role: str
    weights: Format
    activations: Format
    experts: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanModules:
    """What exporters need of a plan: its modules, those left alone among them, and the cache."""

    model: str
    plan: str
    dtype: Format
    kv_cache: str
    modules: tuple[Module, ...]

    @property
    def quantised(self) -> tuple[Module, ...]:
        return tuple(module for module in self.modules if module.weights != self.dtype)

    @property
    def kept(self) -> tuple[Module, ...]:
        """Linear layers that stay as they are; tables that nobody multiplies are no linear layers."""
        return tuple(module for module in self.modules if module.weights == self.dtype and module.role != "embedding")

    def by_formats(self) -> Mapping[tuple[str, str], tuple[Module, ...]]:
        """(weights, activations) → modules, in order of first use."""
        found: dict[tuple[str, str], list[Module]] = {}
        for module in self.quantised:
            found.setdefault((module.weights.name, module.activations.name), []).append(module)
        return {key: tuple(modules) for key, modules in found.items()}


def modules_of(plan: PrecisionPlan) -> PlanModules:
    """The modules of ``plan`` in the order of its layers."""
    grouped = [
        Module(
            name=tensor.name.removesuffix(".weight"), role=tensor.role, weights=tensor.format,
            activations=one.activations, experts=tensor.experts,
        )
        for one in plan.groups
        for tensor in one.group.tensors
    ]  # fmt: skip
    inside = {module.name for module in grouped}
    routers = [
        Module(
            name=tensor.name.removesuffix(".weight"),
            role=tensor.role,
            weights=plan.model.dtype,
            activations=plan.model.dtype,
        )
        for tensor in plan.model.tensors
        if tensor.role == "router" and tensor.name.removesuffix(".weight") not in inside and len(tensor.shape) > 1
    ]
    written([plan.model.name, plan.name, *(module.name for module in (*grouped, *routers))], what="the name")
    return PlanModules(
        model=plan.model.name, plan=plan.name, dtype=plan.model.dtype, kv_cache=plan.kv_cache,
        modules=(*grouped, *routers),
    )  # fmt: skip


def patterns(modules: Sequence[Module], others: Sequence[Module]) -> list[str]:
    """Regular expressions (without a prefix) that match exactly ``modules`` among them and ``others``, ends included.

    Modules that differ only in their layer share one; all layers of a kind need no numbers where none of ``others`` is of it.
    """
    kinds = _by_kind(modules)
    elsewhere = _by_kind(others)
    found: list[str] = []
    for kind, numbers in kinds.items():
        text = re.escape(kind).replace(re.escape(_EXPERT), r"\.experts\.[0-9]+\.")
        if "*" not in kind:
            found.append(text)
        elif kind not in elsewhere:
            found.append(text.replace(r"\*", "[0-9]+"))
        else:
            for start in range(0, len(numbers), _MOST_NUMBERS):
                listed = "|".join(map(str, numbers[start : start + _MOST_NUMBERS]))
                found.append(text.replace(r"\*", f"({listed})"))
    return found


def _by_kind(modules: Sequence[Module]) -> dict[str, list[int]]:
    """Name with its layer number replaced by a star → the numbers; names without one map to nothing."""
    found: dict[str, list[int]] = {}
    for module in modules:
        match = _NUMBER.search(module.name)
        if match is None:
            found.setdefault(module.name, [])
        else:
            kind = f"{module.name[: match.start()]}.*.{module.name[match.end() :]}"
            found.setdefault(kind, []).append(int(match[1]))
    return found
