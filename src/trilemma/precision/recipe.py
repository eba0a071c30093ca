"""The low-precision training recipe that a device and a framework support, in code that exists, and what it really saves.

Bytes come from the training ledger (low-precision copies of weights are counted, they add rather than save); time from two
estimates of the same plan, so that the parts that stay in 16 bits bound the gain as Amdahl (1967) has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, UnknownName
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model

#: Lines of a step whose products a recipe casts; the output matrix ("logits") and attention stay in 16 bits.
_CAST_PRODUCTS = ("linear", "experts")
#: Largest finite values: exponents beyond their logarithm overflow.
_LARGEST = {"fp16": 65504.0, "bf16": 3.3895e38, "fp32": 3.4028e38}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One recipe: what it casts to, why it is chosen, the multiple that layer sides need, where that is known from.

    ``state`` names the row of training state; ``snippets`` hold code or flags by framework.
    """

    name: str
    least_capability: float
    refused_from: float
    align: int
    state: str
    formats: str
    why: str
    source: str
    snippets: Mapping[str, str]
    torchao: Mapping[str, str]

    def formats_in(self, framework: str) -> str:
        """What the framework casts to: torchao scales by rows where Transformer Engine scales by tensors."""
        return self.torchao.get("formats", self.formats) if framework == "torchao" else self.formats

    def source_in(self, framework: str) -> str:
        return self.torchao.get("source", self.source) if framework == "torchao" else self.source

    def state_in(self, framework: str) -> str:
        """The row of training state: torchao casts in every product and keeps no copy."""
        return self.torchao.get("state", self.state) if framework == "torchao" else self.state

    def runs_on(self, accelerator: Accelerator) -> bool:
        """Whether the kernels of this recipe exist for the device."""
        capability = accelerator.compute_capability
        return capability is not None and self.least_capability <= capability < self.refused_from


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkSupport:
    """A framework by name: the version whose source was read, the names that exist there and some that do not.

    ``implementation`` is whose training its layers are priced in.
    """

    key: str
    title: str
    version: str
    source: str
    names: tuple[str, ...]
    absent: tuple[str, ...]
    implementation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Savings:
    """One training plan in BF16 and under a recipe: bytes of the worst rank, seconds of a step.

    ``product_share`` is the share of the BF16 step that matrix products take; no recipe can gain more than
    ``1 / (1 − product_share)``. ``fits`` says whether the worst rank has room on its card of ``capacity_bytes`` under the
    recipe, ``bf16_fits`` whether it has without.
    """

    bf16_bytes: float
    recipe_bytes: float
    weight_copy_bytes: float
    bf16_step_s: float
    recipe_step_s: float
    product_share: float
    capacity_bytes: float
    bf16_fits: bool
    fits: bool

    @property
    def speed_up(self) -> float:
        return self.bf16_step_s / self.recipe_step_s

    @property
    def bound(self) -> float:
        return 1 / (1 - self.product_share) if self.product_share < 1 else math.inf


def frameworks() -> dict[str, FrameworkSupport]:
    """Every framework of the data file by its short name."""
    return {
        key: FrameworkSupport(
            key=key, title=row["title"], version=row["version"], source=row["source"], names=tuple(row["names"]),
            absent=tuple(row["absent"]), implementation=row["implementation"],
        )
        for key, row in _document()["framework"].items()
    }  # fmt: skip


def recipes() -> tuple[Recipe, ...]:
    """Every recipe, in order of preference where a device supports several."""
    return tuple(
        Recipe(
            name=row["name"],
            least_capability=row["capability"][0],
            refused_from=row["capability"][1],
            align=row["align"],
            state=row["state"],
            formats=row["formats"],
            why=row["why"],
            source=row["source"],
            snippets=_snippets(row),
            torchao=row.get("in_torchao", {}),
        )
        for row in _document()["recipe"]
    )


def choose(accelerator: Accelerator, framework: str, wanted: str | None = None) -> Recipe:
    """The preferred recipe that ``accelerator`` and ``framework`` support, or ``wanted``.

    Raises `InputError` where there is none, naming what the device and the framework do support.
    """
    if framework not in frameworks():
        raise UnknownName("framework", framework, frameworks())
    # What trainings call by their state ("fp8") is the first recipe of it.
    known = {name for recipe in recipes() for name in (recipe.name, recipe.state)}
    if wanted is not None and wanted not in known:
        raise UnknownName("recipe", wanted, known)
    runs = [recipe for recipe in recipes() if recipe.runs_on(accelerator)]
    spoken = [recipe for recipe in runs if framework in recipe.snippets]
    for recipe in spoken:
        if wanted in (None, recipe.name, recipe.state):
            return recipe
    capability = accelerator.compute_capability
    device = f"{accelerator.name} (compute capability {capability})" if capability else accelerator.name
    if not runs:
        raise InputError(
            f"{device} runs no FP8 or FP4 training recipe; train in BF16, or use a card of capability 8.9 or more"
        )
    offer = ", ".join(recipe.name for recipe in spoken) or "none"
    raise InputError(
        f"{wanted or 'no recipe'} is not to be had with {frameworks()[framework].title} on {device}; there: {offer}"
    )


def misaligned(model: Model, recipe: Recipe, *, tp: int = 1) -> list[str]:
    """Linear layers whose sides, cut by ``tp``, are no multiple of the recipe's: they stay in 16 bits or are refused."""
    found: dict[str, None] = {}
    for tensor in model.of_part("layers"):
        if len(tensor.shape) < 2 or not tensor.quantizable:
            continue
        rows, columns = tensor.shape[-2:]
        rows, columns = (
            (rows // tp, columns)
            if tensor.shard == "column"
            else (rows, columns // tp if tensor.shard == "row" else columns)
        )
        if rows % recipe.align or columns % recipe.align:
            found[f"{tensor.role} ({rows} x {columns})"] = None
    return list(found)


def exponent_limits() -> dict[str, float]:
    """The largest exponent whose exponential is finite, by format: what a log ratio may reach before a loss overflows."""
    return {name: math.log(largest) for name, largest in _LARGEST.items()}


def reinforcement_facts() -> Mapping[str, Any]:
    """What stays in FP32 when a policy is trained by reinforcement, with the source."""
    facts: Mapping[str, Any] = _document()["reinforcement"]
    return facts


def savings(estimate: Any, plan: Any, state_name: str) -> Savings:
    """``plan`` (a BF16 `TrainingPlan`) beside itself with the products and copies of the training state ``state_name``;
    ``estimate`` prices a plan (`Estimate`)."""
    from trilemma.plans.recipes import recipe as training_recipe

    state = training_recipe(state_name)
    own = plan.recipe
    low = replace(own, name=state.name, matmul=state.matmul, weight_copies=state.weight_copies)
    without_copies = replace(low, weight_copies=())
    before, after = estimate(plan), estimate(replace(plan, recipe=low))
    bare = estimate(replace(plan, recipe=without_copies))
    lines = before.speed.lines
    step = before.speed.step_s.interval.value
    products = sum(seconds for name, seconds in lines.items() if name in _CAST_PRODUCTS)
    return Savings(
        bf16_bytes=before.memory.total.value,
        recipe_bytes=after.memory.total.value,
        weight_copy_bytes=after.memory.total.value - bare.memory.total.value,
        bf16_step_s=step,
        recipe_step_s=after.speed.step_s.interval.value,
        product_share=min(products / step, 1.0),
        capacity_bytes=before.memory.capacity_bytes,
        bf16_fits=before.fits,
        fits=after.fits,
    )


def _snippets(row: Mapping[str, Any]) -> dict[str, str]:
    """Code or flags by framework, its own or those of the library whose layers it trains."""
    known = _document()["framework"]
    own = {key: row[key] for key in known if key in row}
    taken = {key: one for key, one in known.items() if one.get("takes") in own}
    return own | {key: own[one["takes"]] + one["beside"] for key, one in taken.items()}


@cache
def _document() -> dict[str, Any]:
    return read_data("precision/training_recipes.toml")
