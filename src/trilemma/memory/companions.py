"""Memory of what shares the cards with the model that is trained: frozen models, critics, a colocated inference engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.memory.ledger import Budget, Ledger, Line
from trilemma.models.architecture import Model
from trilemma.models.parameters import count
from trilemma.plans.companions import Companion
from trilemma.plans.training import TrainingPlan

if TYPE_CHECKING:
    from trilemma.memory.training import TrainingMemory

#: Lines of the trained model that stay on the card from one step to the next.
_HELD = ("weights", "adapter", "master_weights", "optimizer")
#: Lines that leave the card while an engine generates.
_LEAVES: dict[str, tuple[str, ...]] = {"nothing": (), "optimizer": ("optimizer", "master_weights"), "all": _HELD}


def with_companions(memory: TrainingMemory, model: Model, cluster: Cluster, plan: TrainingPlan) -> TrainingMemory:
    """``memory`` with a line for each kind of companion of ``plan``.

    A frozen model holds its weights, cut as the trained model is by tensor and pipeline, and over data-parallel ranks where it
    is sharded. A critic holds weights, master weights and moments as the trained model does, in proportion to its parameters.
    An engine takes a share of the card (vLLM's gpu_memory_utilization is asked for beside what the trainer holds); one that
    sleeps while the model trains adds only what it and the held state need beyond the peak of a step, as do weights that are
    gathered whole to generate.
    """
    if not plan.companions:
        return memory
    own = float(count(model).total)
    held = sum((np.asarray(line.bytes) for line in memory.ledger if line.name in _HELD), np.asarray(0.0))
    weights = next((line.bytes for line in memory.ledger if line.name == "weights"), 0.0)
    each = [(one, _held_bytes(one, plan, own, weights)) for one in plan.companions if one.role == "frozen"]
    frozen = np.rint(sum((value for one, value in each if not one.offloaded), np.asarray(0.0)))
    trained = (one for one in plan.companions if one.role == "trained" and not one.offloaded)
    critic = np.rint(sum((_share(one, own) * held for one in trained), 0.0))
    engine = np.rint(_engine_bytes(memory, cluster, plan, held + frozen + critic, frozen + critic, own))
    lines = [
        _line("reference_models", frozen, "inside", "parameters x bytes / ranks that hold them", plan, "frozen"),
        _line(
            "critic",
            critic,
            "inside",
            "weights, master weights and moments, as the trained model's by parameter",
            plan,
            "trained",
        ),
        _line(
            "generation_engine",
            engine,
            "outside",
            "share of the card, or weights gathered whole, beyond the peak where they are gone in the step",
            plan,
            "engine",
        ),
    ]
    moved = sum((value for one, value in each if one.offloaded), np.asarray(0.0))
    return replace(
        memory,
        ledger=Ledger(lines=(*memory.ledger.lines, *(line for line in lines if np.any(line.bytes)))),
        allocated_bytes=memory.allocated_bytes + frozen + critic,
        reserved_bytes=memory.reserved_bytes + frozen + critic,
        outside_bytes=memory.outside_bytes + engine,
        host_bytes=memory.host_bytes + moved,
    )


def _engine_bytes(
    memory: TrainingMemory, cluster: Cluster, plan: TrainingPlan, held: Any, beside: Any, own: float
) -> Any:
    """What engines take beside a step: their share of the card, or, asleep in the step, what it and the state ``held`` need
    while they generate beyond the step's peak with its companions ``beside``."""
    engines = [one for one in plan.companions if one.role == "engine"]
    card = cluster.accelerator.runtime_total().value
    awake = sum(one.share for one in engines if not one.asleep) * card
    asleep = sum(one.share for one in engines if one.asleep) * card
    whole = sum(own * catalogue.get(one.format).bits / 8 for one in plan.companions if one.role == "gathered")
    if not asleep and not whole:
        return np.asarray(awake)
    gone = _LEAVES[max((one.frees for one in engines), key=list(_LEAVES).index, default="nothing")]
    left = sum((np.asarray(line.bytes) for line in memory.ledger if line.name in gone), np.asarray(0.0))
    generating = held - left + memory.outside_bytes + asleep + whole
    return awake + np.maximum(generating - (memory.device_bytes + beside), 0.0)


def _held_bytes(one: Companion, plan: TrainingPlan, own: float, weights: Any) -> Any:
    """Bytes of a frozen model on a rank. A copy of the trained model lies as that does, cut by tensors, stages and experts (and
    over data-parallel ranks where both are sharded), in its own format."""
    bits = catalogue.get(one.format).bits
    if one.parameters is None and one.sharded == (plan.zero == 3):
        return np.asarray(weights) * bits / catalogue.get(plan.recipe.weights).bits
    layout = plan.layout
    cut = np.asarray(layout.tp) * layout.pp
    return (one.parameters or own) * bits / 8 / (cut * layout.dp * layout.cp if one.sharded else cut)


def _share(one: Companion, own: float) -> float:
    return (one.parameters or own) / own


def _line(name: str, value: Any, budget: Budget, formula: str, plan: TrainingPlan, role: str) -> Line:
    bytes_ = float(value) if np.ndim(value) == 0 else value
    return Line(
        name=name, bytes=bytes_, low=bytes_, high=bytes_, budget=budget, formula=formula,
        inputs={one.name: one.share or one.parameters or "as trained" for one in plan.companions if one.role == role},
    )  # fmt: skip
