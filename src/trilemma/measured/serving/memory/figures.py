"""The figures of one serving-memory row, predicted and measured: lines, pool, tokens, concurrency.

A figure that the engine printed for one stage lets the later stages be judged twice: from our own budget, and given the
engine's figure. What is printed is rounded, so every interval reaches half a unit of the last printed place further.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trilemma import engines
from trilemma.engines.base import KvPool, StartUp
from trilemma.estimate.measured import lines_bytes
from trilemma.measured.judgement import FigureComparison
from trilemma.measured.serving.memory.question import StartQuestion
from trilemma.measured.serving.memory.start import given_pool, replace_weights
from trilemma.measured.tables import Row, UnusableRow
from trilemma.quantities import GIB

WEIGHT_LINES = ("weights", "draft_model", "vision", "adapter")
#: Ledger lines behind each figure that the engine prints.
PRINTED_LINES: dict[str, tuple[str, ...]] = {
    "weights_gib_per_gpu": WEIGHT_LINES,
    "activation_peak_gib": ("activations", "logits"),
    "non_torch_gib": ("workspace", "communication"),
    "cudagraph_gib": ("cuda_graphs",),
}
METRICS = (
    *PRINTED_LINES, "kv_cache_gib_per_gpu", "kv_cache_gib_given_weights", "kv_cache_gib_over_card", "kv_cache_tokens",
    "kv_cache_tokens_given_bytes", "max_concurrency_x", "max_concurrency_given_bytes", "kv_need_gib", "verdict",
)  # fmt: skip
#: A pool below this share of the card is the small difference of large lines: judged over the card and in the verdict only.
LEAST_POOL_SHARE = 0.02
#: A replica's pool is that of its tightest rank, while the printed bytes may be another's: ranks differ by about this much.
BETWEEN_RANKS_BYTES = 0.1 * GIB
_NEEDS = re.compile(r"needs ([0-9]{1,9}(?:\.[0-9]{1,9})?) GiB")


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRow:
    """A row beside its prediction. ``own_weights`` is False where the row's printed weights stand in for ours."""

    row: Row
    question: StartQuestion
    start: StartUp
    own_weights: bool
    left_out: list[str]

    def measured(self, column: str, *, low: float = -65536, high: float = 1e12) -> float | None:
        """A measured cell; one that is absurd is left out with its reason, the rest of the row is judged."""
        try:
            return self.row.number(column, low=low, high=high)
        except UnusableRow as error:
            self.left_out.append(str(error))
            return None

    def compare(
        self, metric: str, column: str, bounds: tuple[float, float, float], *, scale: float | None = None
    ) -> list[FigureComparison]:
        """``metric`` from the cell ``column`` and (value, low, high); empty where the cell gives no relative error."""
        measured = self.measured(column)
        if measured is None:
            return []
        if scale is None and measured <= 0:
            self.left_out.append(f"{metric}: {measured:g} has no relative error")
            return []
        value, low, high = bounds
        half = rounding(self.row.text(column))
        return [
            FigureComparison(
                metric=metric,
                predicted=value,
                low=min(low, value) - half,
                high=max(high, value) + half,
                measured=measured,
                scale=scale,
            )
        ]


def rounding(text: str) -> float:
    """Half a unit in the last printed place: "19.47" → 0.005, "1360384" → 0.5."""
    return 0.5 * 10.0 ** -min(len(text.partition(".")[2]), 12)


def figures(case: JudgedRow) -> list[FigureComparison]:
    """Every figure of the row that can be compared."""
    return [*_lines(case), *_pool(case), *_need(case), *_given_weights(case), *_given_bytes(case)]


def given_bytes_only(case: JudgedRow) -> list[FigureComparison]:
    """What can be judged without any weights: the later stages given the printed pool."""
    return [*_need(case), *_given_bytes(case)]


def _allocated_at_once(case: JudgedRow) -> bool:
    """Whether the engine prints what its whole context takes rather than what is left for a cache."""
    return engines.traits_of(case.question.engine).allocates_context


def _lines(case: JudgedRow) -> list[FigureComparison]:
    found: list[FigureComparison] = []
    if _allocated_at_once(case) and not case.question.context_stated:
        case.left_out.append("activation_peak_gib: depends on the context, which the row does not state")
    for metric, names in PRINTED_LINES.items():
        if _allocated_at_once(case) and not case.question.context_stated and names is not WEIGHT_LINES:
            continue
        if names is not WEIGHT_LINES or case.own_weights:
            value, low, high = (n_bytes / GIB for n_bytes in lines_bytes(case.start, names))
            found += case.compare(metric, metric, (value, low, high))
    return found


def _pool_bounds(pool: KvPool) -> tuple[float, float, float]:
    """(value, low, high) bytes of a pool."""
    return float(pool.available_bytes), float(pool.available_low_bytes), float(pool.available_high_bytes)


def _in_gib(bounds: tuple[float, float, float]) -> tuple[float, float, float]:
    return bounds[0] / GIB, bounds[1] / GIB, bounds[2] / GIB


def _has_pool(case: JudgedRow) -> bool:
    measured = case.measured("kv_cache_gib_per_gpu")
    return measured is not None and measured >= LEAST_POOL_SHARE * float(case.start.capacity_bytes) / GIB


def _pool(case: JudgedRow) -> list[FigureComparison]:
    """The pool and what is printed of it, from our own budget."""
    bounds = _pool_bounds(case.start.pool)
    if _allocated_at_once(case):
        # The whole context is allocated at once: what is printed is the need, not what is left for it.
        if not case.question.context_stated:
            case.left_out.append("kv_cache_gib_per_gpu: depends on the context, which the row does not state")
            return []
        bounds = (float(case.start.pool.need_bytes),) * 3
    card_gib = float(case.start.capacity_bytes) / GIB
    column = "kv_cache_gib_per_gpu"
    found = case.compare("kv_cache_gib_over_card", column, _in_gib(bounds), scale=card_gib)
    if _has_pool(case) or _allocated_at_once(case):
        found += case.compare(column, column, _in_gib(bounds))
    elif found:
        case.left_out.append(f"{column}: {case.row.text(column)} GiB is under {LEAST_POOL_SHARE:.0%} of the card")
    return found + _printed(case, "kv_cache_tokens", "max_concurrency_x", bounds)


def _printed(
    case: JudgedRow, tokens: str, concurrency: str, bounds: tuple[float, float, float]
) -> list[FigureComparison]:
    """The metrics ``tokens`` and ``concurrency`` of the pools that ``bounds`` (value, low, high) bytes per GPU make."""
    wanted = [
        (metric, column, attribute)
        for metric, column, attribute in (
            (tokens, "kv_cache_tokens", "tokens"), (concurrency, "max_concurrency_x", "concurrency")
        )
        if case.row.text(column)
    ]  # fmt: skip
    if wanted and not case.question.context_stated:
        wanted = [item for item in wanted if _independent_of_context(case, item[1])]
    if not wanted:
        return []
    pools = [given_pool(case.question, case.start.pool, n_bytes) for n_bytes in bounds]
    found: list[FigureComparison] = []
    for metric, column, attribute in wanted:
        value, low, high = (float(getattr(pool, attribute)) for pool in pools)
        found += case.compare(metric, column, (value, low, high))
    return found


def _independent_of_context(case: JudgedRow, column: str) -> bool:
    """Whether a figure means something without the length it was printed for: tokens of uniform models only."""
    if column == "kv_cache_tokens" and not case.question.model.is_hybrid:
        return True
    case.left_out.append(f"{column}: depends on max_model_len, which the row does not state")
    return False


def _need(case: JudgedRow) -> list[FigureComparison]:
    """The bytes that one request of full length needs, from the refusal that names them."""
    found = _NEEDS.search(case.row.text("oom_message_facts")[:1000])
    if found is None or not case.question.context_stated:
        return []
    value, half = float(case.start.pool.need_bytes) / GIB, rounding(found.group(1))
    return [
        FigureComparison(
            metric="kv_need_gib", predicted=value, low=value - half, high=value + half, measured=float(found.group(1))
        )
    ]


def _given_weights(case: JudgedRow) -> list[FigureComparison]:
    """The pool with the printed weights in place of ours."""
    weights = case.measured("weights_gib_per_gpu", low=0.01)
    if weights is None or _allocated_at_once(case) or not _has_pool(case):
        return []
    told = replace_weights(case.start, case.question, weights * GIB).pool
    return case.compare("kv_cache_gib_given_weights", "kv_cache_gib_per_gpu", _in_gib(_pool_bounds(told)))


def _other_rank_less(case: JudgedRow) -> float:
    """By how much the tightest rank may be below the one that printed: chance, and logits on the last stage alone."""
    layout = case.question.layout
    logits = lines_bytes(case.start, ("logits",))[0] if layout.pp > 1 else 0.0
    return logits + (BETWEEN_RANKS_BYTES if layout.tp * layout.pp > 1 else 0.0)


def _given_bytes(case: JudgedRow) -> list[FigureComparison]:
    """Tokens and concurrency of the printed pool."""
    pool = case.measured("kv_cache_gib_per_gpu")
    if pool is None or pool <= 0 or _allocated_at_once(case):
        return []
    half = rounding(case.row.text("kv_cache_gib_per_gpu")) * GIB
    bounds = (pool * GIB, pool * GIB - half - _other_rank_less(case), pool * GIB + half)
    return _printed(case, "kv_cache_tokens_given_bytes", "max_concurrency_given_bytes", bounds)
