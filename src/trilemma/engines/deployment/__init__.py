"""What a plan becomes where it runs: engines on hosts, in containers, on Kubernetes, behind a router."""

from trilemma.engines.deployment.fleet import End, EngineGroup, Fleet, NodeSpan, Route, Router, Side

__all__ = ["End", "EngineGroup", "Fleet", "NodeSpan", "Route", "Router", "Side"]
