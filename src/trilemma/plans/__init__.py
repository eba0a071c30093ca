"""How: layouts, pools and plans."""

from trilemma.plans.plan import Draft, EngineRef, Layout, Plan, Pool, ServeOptions

__all__ = ["Draft", "EngineRef", "Layout", "Plan", "Pool", "ServeOptions"]
