"""How: layouts, pools and plans, for serving and for training."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trilemma.plans.plan import Draft, EngineRef, Layout, Plan, Pool, ServeOptions

if TYPE_CHECKING:
    from trilemma.plans.recipes import optimizer, recipe
    from trilemma.plans.training import Offload, Optimizer, Recompute, TrainingPlan, TrainingRecipe

__all__ = [
    "Draft", "EngineRef", "Layout", "Offload", "Optimizer", "Plan", "Pool", "Recompute", "ServeOptions", "TrainingPlan",
    "TrainingRecipe", "optimizer", "recipe",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The names of training are looked up where they live when asked for: serving needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "recipes" if name in ("optimizer", "recipe") else "training"
    return getattr(import_module(f"{__name__}.{home}"), name)
