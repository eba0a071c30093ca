"""Search over plans: the best ones for a load, the Pareto front, and what would make a failing plan fit."""

from trilemma.search.pareto import pareto_front
from trilemma.search.remedies import remedies
from trilemma.search.search import Found, SearchResult, search_serving
from trilemma.search.space import Fixed, Precision

__all__ = ["Fixed", "Found", "Precision", "SearchResult", "pareto_front", "remedies", "search_serving"]
