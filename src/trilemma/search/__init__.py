"""Search over plans: the best ones for a load, the Pareto front, and what would make a failing plan fit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trilemma.search.found import Found
    from trilemma.search.pareto import pareto_front
    from trilemma.search.precisions import WeightPrecision
    from trilemma.search.result import SearchResult
    from trilemma.search.search import search_serving
    from trilemma.search.space import Constraints

__all__ = ["Constraints", "Found", "SearchResult", "WeightPrecision", "pareto_front", "search_serving"]

_HOMES = {
    "Found": "found",
    "Constraints": "space",
    "WeightPrecision": "precisions",
    "SearchResult": "result",
    "pareto_front": "pareto",
}


def __getattr__(name: str) -> Any:
    """Public names are looked up where they live when asked for: a single plan needs little of this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'search')}"), name)
