"""What a rank holds beside its cache: weights, the peak of a pass, CUDA graphs, buffers, context. One formula for all engines.

Coefficients are those of the engine and version in question (`trilemma.engines.coefficients`); every function takes scalars or
arrays (plans,).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from trilemma.engines.coefficients import MemoryCoefficients
from trilemma.engines.loading import weights_relative
from trilemma.hardware.accelerator import Accelerator
from trilemma.memory.weights import RankWeights, WeightTable, rank_weights
from trilemma.models.architecture import DenseFfn, ExpertFfn, Model, Tensor
from trilemma.quantities import GIB, MIB, Numbers, ceil_div

#: How the cards of a node are joined: by a switch that multicasts, by another switch, by bridges or PCIe.
FabricKind = Literal["multicast", "linked", "bridged"]
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
#: Lines whose widths the data names otherwise, and lines that a version whose facts are not known leaves as they are.
_SPREAD_NAMES = {"draft_model": "draft", "cuda_graphs": "graphs"}
_OF_CHECKPOINT = ("draft_model", "vision", "context")


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """The sizes of a model that activations go by; those of experts are of the block with the widest rows, 0 without."""

    hidden: int
    vocab: int
    widest_ffn: int
    expert_rows: int
    expert_ffn: int
    expert_format: str

    @classmethod
    def of(cls, model: Model) -> Widths:
        dense = [layer.ffn.intermediate for layer in model.layers if isinstance(layer.ffn, DenseFfn)]
        experts = [layer.ffn for layer in model.layers if isinstance(layer.ffn, ExpertFfn)]
        one = max(experts, key=lambda ffn: ffn.top_k * ffn.intermediate, default=None)
        return cls(
            hidden=model.hidden,
            vocab=model.vocab,
            widest_ffn=max((*dense, *(ffn.shared_intermediate for ffn in experts)), default=0),
            expert_rows=one.top_k if one else 0,
            expert_ffn=one.intermediate if one else 0,
            expert_format=next((t.format.name for t in model.tensors if t.experts and t.role == "experts.up"), ""),
        )


def fabric_of(accelerator: Accelerator, memory: MemoryCoefficients) -> FabricKind:
    """Cards behind a switch keep all-reduce workspaces, larger where the switch multicasts; bridged pairs keep little."""
    link, capability = accelerator.link, accelerator.compute_capability
    if link is None or link.domain < memory["fabric"]["switched"]:
        return "bridged"
    multicasts = capability is not None and capability >= memory["fabric"]["multicast_from"]
    return "multicast" if multicasts else "linked"


def context_bytes(memory: MemoryCoefficients, *, ranks: Numbers, fabric: FabricKind) -> Any:
    """The CUDA context of a worker, and the communicators that several ranks set up."""
    data = memory["context_gib"]
    several = data["bridged" if fabric == "bridged" else "linked"]
    return np.where(np.asarray(ranks) > 1, several, data["alone"]) * GIB


def forward_bytes(widths: Widths, memory: MemoryCoefficients, *, row: Any, tp: Numbers) -> Any:
    """The peak of a pass through a dense block: copies of hidden rows and of feed-forward columns, these divided by ``tp``.

    ``row``: bytes of one element for each token of the pass.
    """
    data = memory["forward"]
    columns = ceil_div(widths.widest_ffn, np.asarray(tp))
    return data["hidden_copies"] * (row * widths.hidden) + data["ffn_copies"] * row * columns


def expert_bytes(widths: Widths, memory: MemoryCoefficients, *, row: Any, tp: Numbers, ep: Numbers) -> Any:
    """The workspace of fused experts: ``rows · top_k · (max(2 · columns, hidden) + columns)``, the columns of a rank.

    ``ep`` spreads the routed rows, else ``tp`` cuts the columns; kernels of some formats keep none.
    """
    data = memory["experts"]
    if not widths.expert_rows or widths.expert_format in data["without"]:
        return np.zeros(np.shape(row))
    inner = ceil_div(widths.expert_ffn, np.where(np.asarray(ep) > 1, 1, tp))
    rows = row * widths.expert_rows / np.asarray(ep)
    return rows * (data["wide_copies"] * np.maximum(2 * inner, widths.hidden) + data["ffn_copies"] * inner)


def graph_bytes(
    widths: Widths, memory: MemoryCoefficients, *, layers: Numbers, graphs: Numbers, largest: Numbers, tp: Numbers,
) -> Any:  # fmt: skip
    """CUDA graphs of a rank that holds ``layers``: a share fixed, one per graph and layer, one for the buffers of the
    ``largest`` batch, cut by ``tp`` but for experts. Nothing where nothing is captured.
    """
    data = memory["graphs"]
    batch = np.asarray(largest) / data["largest_batch"]
    experts = data["experts_gib"] if widths.expert_rows else 0.0
    size = (
        data["fixed_gib"] * GIB
        + data["per_graph_layer_mib"] * MIB * np.asarray(graphs) * np.asarray(layers)
        + batch * (data["largest_gib"] / np.asarray(tp) + experts) * GIB
    )
    return np.where(np.asarray(largest) > 0, size, 0.0)


def rungs(ladder: Sequence[Sequence[int]], largest: Numbers) -> Any:
    """How many sizes of ``ladder`` lie at or below ``largest``; it is made of (first, last, step), last 0 for no end."""
    top = np.asarray(largest)
    return sum(
        np.maximum((np.minimum(top, last or np.inf) - first) // step + 1, 0) for first, last, step in ladder
    )  # fmt: skip


def buffer_bytes(memory: MemoryCoefficients, *, ranks: Numbers, fabric: FabricKind) -> tuple[Any, Any]:
    """Allocations outside PyTorch: those of any rank, and what several ranks add, by the ``fabric`` that joins their cards."""
    data = memory["non_torch_gib"]
    alone = np.full(np.shape(ranks), data["alone"] * GIB)
    return alone, np.where(np.asarray(ranks) > 1, data[fabric] * GIB, 0.0)


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


def rope_table_bytes(model: Model, *, positions: float, element_bytes: float, factor: int = 1) -> float:
    """Tables of sines and cosines, one for each kind of rotated heads, shared by all layers of a rank.

    ``positions · rotated width`` elements; ``factor`` times as many for full attention whose rotation is scaled linearly.
    """
    kinds = {
        (mixer.rotary_width, mixer.look_back is not None and mixer.look_back[0] == "window")
        for mixer in model.mixers
        if mixer.rotary_width
    }
    rows = sum(width * (1 if windowed else factor) for width, windowed in kinds)
    return positions * rows * element_bytes


def _repeated(tensor: Tensor) -> bool:
    return tensor.role.partition(".")[0] in ATTENTION_ROLES


def half_widths(model: Model, lines: Mapping[str, Any], memory: MemoryCoefficients, *, known: bool) -> dict[str, Any]:
    """Half-widths (90 %) of the lines, in bytes; wider by a factor for a version whose facts are not known."""
    data = memory["spread"]
    factor = 1.0 if known else data["unknown_version_factor"]
    found = {}
    for line, value in lines.items():
        name = _SPREAD_NAMES.get(line, line)
        if line == "weights":
            stored = np.hypot(weights_relative(model, data) * value, data.get("loaded_gib", 0.0) * GIB)
            width = stored + _uncounted_tower_bytes(model, memory)
        elif f"{name}_relative" in data:
            wider = 1.0 if line in _OF_CHECKPOINT else factor
            fixed, relative = data.get(f"{name}_gib", 0.0) * GIB, data[f"{name}_relative"]
            width = wider * np.hypot(fixed, relative * value) if fixed else wider * relative * value
        else:
            continue
        found[line] = np.where(value > 0, width, 0.0)
    return found


def _uncounted_tower_bytes(model: Model, memory: MemoryCoefficients) -> float:
    """What a multimodal model may load beside what is counted, when its tower is not described."""
    counted = any(tensor.part == "vision" for tensor in model.tensors)
    return 0.0 if counted or not model.multimodal else memory["spread"]["uncounted_tower_gib"] * GIB


def pool_unknown(model: Model, memory: MemoryCoefficients, pool_bytes: Any) -> Any:
    """How far a pool of compressed attention may be off: its windows and states are sized by rules that are not followed."""
    compressed = any(mixer.is_compressed for mixer in model.mixers)
    share = memory["spread"]["compressed_pool_relative"] if compressed else 0.0
    return share * np.maximum(pool_bytes, 0)
