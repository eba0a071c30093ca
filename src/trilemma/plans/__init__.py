"""How: layouts, pools and plans, for serving and for training."""

from trilemma.plans.plan import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Offload, Optimizer, Recompute, TrainingPlan, TrainingRecipe

__all__ = [
    "Draft", "EngineRef", "Layout", "Offload", "Optimizer", "Plan", "Pool", "Recompute", "ServeOptions", "TrainingPlan",
    "TrainingRecipe", "optimizer", "recipe",
]  # fmt: skip
