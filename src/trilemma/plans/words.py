"""Plans in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.plans.plan import Layout, Plan, Pool

if TYPE_CHECKING:
    from trilemma.plans.training import TrainingPlan


def plan_words(plan: Plan | TrainingPlan) -> str:
    """``TP8``, ``3 × TP4``, ``2 × TP4 prefill + 3 × TP2 decode``; of training ``TP4 PP8 VPP5 DP16 · fp8 · ZeRO-1``."""
    if isinstance(plan, Plan):
        return " + ".join(_pool_words(pool) for pool in plan.pools)
    return " · ".join((training_layout(plan), plan.recipe.name, *((f"ZeRO-{plan.zero}",) if plan.zero else ())))


def layout_words(layout: Layout) -> str:
    """A layout of serving: ``TP8``, ``TP4 PP2``, ``DP8 EP8``, degrees of one left out."""
    return _degrees(layout, ("tp", "pp", "dp", "ep", "cp", "dcp"))


def training_layout(plan: TrainingPlan) -> str:
    """``TP4 PP8 VPP5 DP16``, degrees of one left out."""
    return _degrees(plan.layout, ("tp", "pp", "vpp", "cp", "ep", "dp"))


def _pool_words(pool: Pool) -> str:
    words = layout_words(pool.layout)
    if pool.role != "serve" or pool.replicas > 1:
        words = f"{pool.replicas} × {words}" if words != "one GPU" else f"{pool.replicas} × 1 GPU"
    return words if pool.role == "serve" else f"{words} {pool.role}"


def _degrees(layout: Layout, order: tuple[str, ...]) -> str:
    degrees = {name: int(getattr(layout, name)) for name in order}
    return " ".join(f"{name.upper()}{degree}" for name, degree in degrees.items() if degree > 1) or "one GPU"
