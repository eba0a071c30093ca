"""How Ollama laid layers on cards before it left that to llama-server: by an estimate, or by what a trial run allocates.

Sources: llm/memory.go (EstimateGPULayers), fs/ggml/ggml.go (GraphSize) of 0.5 to 0.11; llm/server.go (buildLayout) from 0.12 on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trilemma.models.architecture import Model
from trilemma.quantities import GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What the estimate goes by: ``context`` cells of the cache, tokens of a ``batch``, sizes of the model."""

    context: int
    batch: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def of(cls, model: Model, *, cells: int, batch: int) -> Sizes:
        attending = [mixer for mixer in model.mixers if not mixer.keeps_state and mixer.heads]
        first = attending[0] if attending else None
        heads = first.heads if first else 1
        return cls(
            context=cells, batch=min(cells, batch), hidden=model.hidden, heads=heads,
            kv_heads=getattr(first, "kv_heads", heads) or heads, head_dim=model.hidden // max(heads, 1), vocab=model.vocab,
        )  # fmt: skip


def graph_bytes(family: str, sizes: Sizes, kv_bytes: float) -> tuple[float, float]:
    """(bytes of the compute graph where all layers are on cards, where some are not), as Ollama estimates them.

    Families without a formula of their own: query heads per KV head · cache / 6, for both (EstimateGPULayers).
    """
    known = next((rule for names, rule in _GRAPHS if family in names), None)
    if known is None:
        other = sizes.heads / sizes.kv_heads * kv_bytes / 6
        return other, other
    return known(sizes)


def _llama(s: Sizes) -> tuple[float, float]:
    full = max(4 * s.batch * (1 + 4 * s.hidden + s.context * (1 + s.heads)), 4 * s.batch * (s.hidden + s.vocab))
    partial = 4 * s.batch * s.hidden + max(
        4 * s.batch * (1 + s.hidden + max(s.context, s.hidden)) + s.hidden * s.hidden * 9 / 16
        + 4 * s.context * (s.batch * s.heads + s.head_dim * s.kv_heads),
        4 * s.batch * (s.hidden + s.vocab) + s.hidden * s.vocab * 105 / 128,
    )  # fmt: skip
    return full, partial


def _qwen2(s: Sizes) -> tuple[float, float]:
    full = max(4 * s.batch * (s.hidden + s.vocab), 4 * s.batch * (1 + 2 * s.hidden + s.context + s.context * s.heads))
    partial = max(
        4 * s.batch * (s.hidden + s.vocab) + s.hidden * s.vocab * 105 / 128,
        4 * (s.batch * (1 + 2 * s.hidden + s.context * (1 + s.heads)) + s.hidden * (1 + s.context)),
    )
    return full, partial


def _gemma(s: Sizes) -> tuple[float, float]:
    wide = 2 * s.head_dim * s.heads
    scores = s.context + s.context * s.heads
    full = max(4 * s.batch * (s.hidden + s.vocab), 4 * s.batch * (2 + scores + 2 * s.hidden + wide))
    partial = max(
        4 * s.hidden * s.batch + s.hidden * s.vocab * 105 / 128 + 4 * s.vocab * s.batch,
        4 * s.batch * (2 * s.hidden + 1 + wide + scores) + 4 * s.head_dim * s.context * 8
        + s.hidden * s.head_dim * s.heads * 9 / 16,
    )  # fmt: skip
    return full, partial


_GRAPHS: tuple[tuple[tuple[str, ...], Callable[[Sizes], tuple[float, float]]], ...] = (
    (("llama", "mistral", "llama4"), _llama),
    (("qwen2", "qwen2_vl", "qwen2_5_vl"), _qwen2),
    (("gemma", "gemma2", "gemma3", "gemma3n"), _gemma),
)


def batch_that_fits(
    wanted: int, predicted: float, available: float, *, room: Sequence[Sequence[float]], least: int, share: float
) -> int:
    """The largest batch up to ``wanted`` tokens with which Ollama sees the ``predicted`` bytes fit into those ``available``.

    ``room``: (tokens, share that the prediction may take, GiB that such a batch adds), the largest first (server/sched.go).
    """
    for tokens, most, adds in room:
        if tokens > wanted:
            continue
        left = share * available - predicted
        if left >= 0 and predicted <= most * available and adds * GIB <= left:
            return int(tokens)
    return min(wanted, least)


def layers_by_estimate(
    layers: Sequence[float],
    head: float,
    graphs: tuple[float, float],
    free: Sequence[float],
    *,
    aside: float,
    first: float = 0.0,
) -> tuple[int, bool]:
    """(decoder layers that go to cards, whether the output matrix does too): round the cards in turn, each while it has room.

    ``layers``: bytes of each with its cache; ``aside``: bytes that every card keeps free beside one more layer and the larger of
    the ``graphs``; ``first``: what the first card holds before any layer.
    """
    graph = max(graphs) if len(free) == 1 else graphs[1]
    buffer = layers[0] if len(layers) else 0.0
    used: dict[int, float] = {}
    for card, room in enumerate(free):
        own = first if not used else 0.0
        if room >= own + graph + aside + 2 * buffer:
            used[card] = aside + buffer + own
    order, count = list(used), 0
    for at, size in enumerate(layers):
        while order:
            card = order[at % len(order)]
            if free[card] > used[card] + graph + size:
                used[card] += size
                count += 1
                break
            order.remove(card)
    whole = count == len(layers) and any(free[card] > used[card] + graph + head for card in order)
    return count, whole
