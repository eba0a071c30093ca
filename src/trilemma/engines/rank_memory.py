"""What a rank holds beside its cache, for engines without a measured profile of their own: weights, passes, graphs, context.

The coefficients stand in ``data/coefficients/serving_memory.toml``; every function takes scalars or arrays (plans,).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.plain_toml import read_data
from trilemma.engines.loading import weights_relative
from trilemma.hardware.accelerator import Accelerator
from trilemma.memory.ledger import Ledger, Line
from trilemma.memory.weights import RankWeights, WeightTable, rank_weights
from trilemma.models.architecture import DenseFfn, ExpertFfn, Model, Tensor
from trilemma.quantities import GIB, MIB, Numbers, ceil_div

#: Cards whose fast link joins at least this many stand behind a switch; bridges join two.
_SWITCHED = 4
#: First words of roles that attention data parallelism repeats on every rank; the rest is cut by all ranks.
ATTENTION_ROLES = (
    "attention",
    "mla",
    "indexer",
    "recurrent",
    "compressed",
    "compressor",
    "embedding",
    "norm",
    "router",
)


@cache
def coefficients() -> dict[str, Any]:
    """The shipped coefficients; not to be changed in place."""
    return read_data("coefficients/serving_memory.toml")


def context_bytes(accelerator: Accelerator, ranks: Numbers) -> Any:
    """The CUDA context of a worker, and the communicators that several ranks set up."""
    data = coefficients()["context_gib"]
    link = accelerator.link
    several = data["bridged" if link is None or link.domain < _SWITCHED else "linked"]
    return np.where(np.asarray(ranks) > 1, several, data["alone"]) * GIB


def forward_bytes(model: Model, *, tokens: Numbers, tp: Numbers, ep: Numbers, dtype_bytes: float) -> Any:
    """The peak of one forward pass over ``tokens``: copies of hidden rows, feed-forward columns and routed rows.

    ``tp`` cuts the columns of dense blocks and of experts, ``ep`` spreads the routed rows.
    """
    data = coefficients()["forward"]
    row = np.asarray(tokens) * dtype_bytes
    dense = [layer.ffn.intermediate for layer in model.layers if isinstance(layer.ffn, DenseFfn)]
    experts = [layer.ffn for layer in model.layers if isinstance(layer.ffn, ExpertFfn)]
    widest = max((*dense, *(ffn.shared_intermediate for ffn in experts)), default=0)
    peak = data["hidden_copies"] * row * model.hidden + data["ffn_copies"] * row * ceil_div(widest, np.asarray(tp))
    if experts:
        one = max(experts, key=lambda ffn: ffn.top_k * ffn.intermediate)
        inner = ceil_div(one.intermediate, np.where(np.asarray(ep) > 1, 1, tp))
        routed = row * one.top_k / np.asarray(ep)
        peak = peak + data["expert_copies"] * routed * (np.maximum(2 * inner, model.hidden) + inner)
    return peak


def graph_bytes(
    model: Model, *, engine: str, layers: Numbers, count: Numbers, largest: Numbers, ep: Numbers = 1
) -> Any:
    """CUDA graphs of ``count`` batch sizes up to ``largest`` sequences on a rank that holds ``layers``."""
    data = coefficients()["graphs"][engine]
    experts = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    each = data["experts_gib_per_sequence"] if experts else 0.0
    size = (
        data["fixed_gib"] * GIB
        + data["per_batch_layer_mib"] * MIB * np.asarray(count) * np.asarray(layers)
        + each * np.asarray(largest) * GIB * np.ones(np.shape(ep))
    )
    return np.where(np.asarray(largest) > 0, size, 0.0)


class Weights:
    """A model's tensors summed once, the part that attention repeats apart from what all ranks cut."""

    def __init__(self, model: Model, *, extra: Iterable[Tensor] = (), vocab_padding: int = 64) -> None:
        tensors = (*model.tensors, *extra)
        repeated = tuple(one for one in tensors if _repeated(one))
        rest = tuple(one for one in tensors if not _repeated(one))
        self._repeated = WeightTable.of(replace(model, tensors=repeated))
        self._rest = WeightTable.of(replace(model, tensors=rest))
        self._padding = vocab_padding

    def on_rank(
        self, *, start: Numbers, stop: Numbers, first: Any, last: Any, attention_tp: Numbers, tp: Numbers, ep: Numbers
    ) -> RankWeights:
        """Bytes of decoder layers ``start`` up to ``stop``; attention is cut by ``attention_tp``, the rest by ``tp``."""
        parts = [
            rank_weights(
                table, start=start, stop=stop, first=first, last=last, tp=degree, ep=ep, expert_tp=tp,
                vocab_padding=self._padding,
            )
            for table, degree in ((self._repeated, attention_tp), (self._rest, tp))
        ]  # fmt: skip
        return RankWeights(
            text=parts[0].text + parts[1].text,
            vision=parts[0].vision + parts[1].vision,
            mtp=parts[0].mtp + parts[1].mtp,
        )


def _repeated(tensor: Tensor) -> bool:
    return tensor.role.partition(".")[0] in ATTENTION_ROLES


def half_widths(model: Model, lines: Mapping[str, Any], *, known: bool) -> dict[str, Any]:
    """Half-widths (90 %) of the lines, in bytes; wider by a factor for a version whose facts are not known."""
    data = coefficients()["spread"]
    factor = 1.0 if known else data["unknown_version_factor"]
    counted = any(tensor.part == "vision" for tensor in model.tensors)
    tower = 0.0 if counted or not model.multimodal else data["uncounted_tower_gib"] * GIB
    rules = {
        "weights": lambda value: weights_relative(model, data) * value + tower,
        "draft_model": lambda value: 0.15 * value,
        "vision": lambda value: 0.3 * value,
        "activations": lambda value: (
            factor * np.hypot(data["activations_gib"] * GIB, data["activations_relative"] * value)
        ),
        "logits": lambda value: factor * data["activations_relative"] * value,
        "cuda_graphs": lambda value: factor * np.hypot(data["graphs_gib"] * GIB, data["graphs_relative"] * value),
        "workspace": lambda value: factor * data["workspace_relative"] * value,
        "communication": lambda value: factor * data["workspace_relative"] * value,
        "fragmentation": lambda value: factor * data["workspace_relative"] * value,
        "context": lambda value: data["context_relative"] * value,
    }
    return {name: np.where(value > 0, rules[name](value), 0.0) for name, value in lines.items() if name in rules}


def pool_unknown(model: Model, pool_bytes: Any) -> Any:
    """How far a pool of compressed attention may be off: its windows and states are sized by rules that are not followed."""
    compressed = any(mixer.is_compressed for mixer in model.mixers)
    share = coefficients()["spread"]["compressed_pool_relative"] if compressed else 0.0
    return share * np.maximum(pool_bytes, 0)


def ledger_of(
    lines: Mapping[str, Any], half: Mapping[str, Any], *, formulas: Mapping[str, tuple[str, str]], outside: Iterable[str],
    inputs: Mapping[str, Any], out: Any,
) -> Ledger:  # fmt: skip
    """The lines with their bounds; ``formulas`` are (rule in words, source); lines of nothing are left out.

    ``out`` turns an array into what the caller asked for (`trilemma.engines.table.Plans.out`).
    """
    kept = ("weights", "kv_cache", "activations", "context")
    beyond = frozenset(outside)
    found = []
    for name, value in lines.items():
        if name not in kept and not np.any(np.asarray(value) > 0):
            continue
        width = half.get(name, np.zeros(np.shape(value)))
        formula, source = formulas.get(name, ("", ""))
        found.append(
            Line(
                name=name,
                bytes=out(value),
                low=out(np.maximum(value - width, 0)),
                high=out(value + width),
                budget="outside" if name in beyond else "inside",
                formula=formula,
                inputs=inputs,
                source=source,
            )
        )
    return Ledger(lines=tuple(found))
