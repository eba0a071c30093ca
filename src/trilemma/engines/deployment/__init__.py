"""What a plan becomes where it runs: engines on hosts, in containers, on Kubernetes, behind a router."""

from trilemma.engines.deployment.fleet import End, Fleet, Group, Route, Router, Side, Span

__all__ = ["End", "Fleet", "Group", "Route", "Router", "Side", "Span"]
