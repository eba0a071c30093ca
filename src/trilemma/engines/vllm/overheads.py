"""What vLLM takes beside weights and cache: the activation peak of its profiling run, buffers, CUDA graphs, context.

The coefficients stand in ``data/coefficients/vllm_memory.toml``, by era of the engine and never by model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from trilemma.data.plain_toml import read_data
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import DenseFfn, ExpertFfn, Model
from trilemma.quantities import GIB, MIB, Numbers, ceil_div

#: How the cards of a node are joined: by a switch that multicasts, by another switch, by bridges or PCIe.
Fabric = Literal["multicast", "linked", "bridged"]

#: Cards whose fast link joins at least this many stand behind a switch; bridges join two.
_SWITCHED = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """The sizes of a model that activations go by."""

    hidden: int
    vocab: int
    widest_ffn: int
    expert_rows: int
    expert_wide: int
    expert_ffn: int
    layers: int
    expert_layers: int
    expert_format: str
    sparse_width: int
    latent_heads: int
    latent_head_width: int

    @classmethod
    def of(cls, model: Model) -> Widths:
        dense = [layer.ffn.intermediate for layer in model.layers if isinstance(layer.ffn, DenseFfn)]
        experts = [layer.ffn for layer in model.layers if isinstance(layer.ffn, ExpertFfn)]
        latent = [mixer for mixer in model.mixers if mixer.is_latent]
        shared = [ffn.shared_intermediate for ffn in experts]
        one = max(experts, key=lambda ffn: ffn.top_k * ffn.intermediate, default=None)
        return cls(
            hidden=model.hidden,
            vocab=model.vocab,
            widest_ffn=max((*dense, *shared), default=0),
            expert_rows=one.top_k if one else 0,
            expert_wide=model.hidden if one else 0,
            expert_ffn=one.intermediate if one else 0,
            layers=len(model.layers),
            expert_layers=len(experts),
            expert_format=next((t.format.name for t in model.tensors if t.experts and t.role == "experts.up"), ""),
            sparse_width=max((mixer.latent_width for mixer in latent if mixer.is_sparse), default=0),
            latent_heads=max((mixer.heads for mixer in latent), default=0),
            latent_head_width=max((mixer.unpacked_width for mixer in latent), default=0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The activation peak of the profiling run in two lines that sum to it: the sampler's part and all else."""

    logits: Any
    activations: Any


def activation_peak(
    model: Model, *, widths: Widths, facts: VllmFacts, tp: Numbers, ep: Numbers, last: Any, max_seqs: Numbers,
    tokens: Numbers, dtype_bytes: float, context: int, text_only: bool, compute_capability: float | None,
) -> Peak:  # fmt: skip
    """``fixed + experts + max(sampler, forward + attention + encoder)`` bytes on one rank; scalars or arrays (plans,).

    Sampler: ``c · sequences · vocabulary`` on the ``last`` stage, whole on every rank (logits are gathered). Forward:
    copies of ``tokens`` rows of the hidden state and of the feed-forward's columns, the latter divided by ``tp``.
    Experts: ``tokens · top_k`` rows of the wider matrix, kept for the life of the engine and shared with the workspace of
    sparse attention, which goes by ``context``. Attention: cached latents unpacked into heads, or the indexer's logits.
    Encoder: images of the largest size (vllm/v1/worker/gpu_model_runner.py, profile_run).
    """
    data = _data()
    forward = data["forward"]
    row = np.asarray(tokens) * dtype_bytes
    held = row * widths.hidden
    logits = np.asarray(max_seqs) * float(widths.vocab) * data["sampler_bytes_per_logit"][facts.era]
    sampler = np.asarray(last) * (logits + forward["logit_hidden_copies"] * held)
    ffn = ceil_div(widths.widest_ffn, np.asarray(tp))
    layer = forward["hidden_copies"] * held + forward["ffn_copies"] * row * ffn
    encoder = 0.0 if text_only or not model.multimodal else _encoder_bytes(model, tp)
    attention = _latent_bytes(widths, facts, tp=tp, context=context, dtype_bytes=dtype_bytes)
    if widths.sparse_width:
        attention = _indexer_bytes(tokens=tokens, context=context, compute_capability=compute_capability)
    gathered = float(data["sparse"]["context_copies"]) * context * widths.sparse_width * dtype_bytes
    workspace = np.maximum(_expert_workspace(widths, row=row, tp=tp, ep=ep), gathered)
    peak = forward["fixed_gib"] * GIB + workspace + np.maximum(sampler, layer + encoder + attention)
    shown = np.minimum(np.asarray(last) * logits, peak)
    return Peak(logits=shown, activations=peak - shown)


def _latent_bytes(widths: Widths, facts: VllmFacts, *, tp: Numbers, context: int, dtype_bytes: float) -> Any:
    """Dense latent attention: up to ``most_tokens`` cached latents unpacked into the K and V of a rank's heads."""
    data = _data()["latent"]
    if facts.era in data["not_in"]:
        return np.zeros(np.shape(tp))
    tokens = min(data["contexts"] * context, data["most_tokens"])
    return tokens * ceil_div(widths.latent_heads, np.asarray(tp)) * widths.latent_head_width * dtype_bytes


def _indexer_bytes(*, tokens: Numbers, context: int, compute_capability: float | None) -> Any:
    """Logits of the sparse indexer, in chunks of fixed size, or ``tokens · context`` in FP32 where kernels for chunks lack."""
    data = _data()["sparse"]
    if compute_capability in data["whole_logits_on"]:
        return np.asarray(tokens) * float(context) * 4
    return np.full(np.shape(tokens), data["indexer_gib"] * GIB)


def _expert_workspace(widths: Widths, *, row: Any, tp: Numbers, ep: Numbers) -> Any:
    """``rows · top_k · (max(2 · columns, hidden) + columns)``, the columns of a rank; kernels of some formats keep none."""
    experts = _data()["experts"]
    if not widths.expert_rows or widths.expert_format in experts["without"]:
        return np.zeros(np.shape(row))
    inner = ceil_div(widths.expert_ffn, np.where(np.asarray(ep) > 1, 1, tp))
    rows = row * widths.expert_rows / np.asarray(ep)
    wide = np.maximum(2 * inner, widths.expert_wide)
    return rows * (experts["wide_copies"] * wide + experts["ffn_copies"] * inner)


def _encoder_bytes(model: Model, tp: Numbers) -> Any:
    """Bytes of the largest image in the tower: ``(copies + split / tp) · patches · hidden`` in 16 bits."""
    data = _data()["encoder"]
    image, patch = model.vision.get("image"), model.vision.get("patch")
    if image and patch:
        patches = (image // patch) ** 2 * model.vision.get("tiles", 1)
    else:
        known = (row["patches"] for row in data["patches"] if model.family.startswith(row["family"]))
        patches = next(known, data["otherwise"])
    copies = data["hidden_copies"] + data["split_copies"] / np.asarray(tp)
    return copies * patches * model.vision.get("hidden", 0) * 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
    """Allocations outside PyTorch: on any rank, and what communication between ranks adds."""

    workspace: Any
    communication: Any


def buffers(*, facts: VllmFacts, tp: Numbers, fabric: Fabric) -> Buffers:
    """Non-torch memory that the budget counts; what several ranks add goes by the ``fabric`` that joins their cards."""
    data = _data()["non_torch_gib"]
    alone = np.full(np.shape(tp), data["alone"][facts.era] * GIB)
    added = data[fabric][facts.era] * GIB
    return Buffers(workspace=alone, communication=np.where(np.asarray(tp) > 1, added, 0.0))


def fabric_of(accelerator: Accelerator) -> Fabric:
    """Cards behind a switch keep all-reduce workspaces, larger where the switch multicasts; bridged pairs keep little."""
    link, capability = accelerator.link, accelerator.compute_capability
    if link is None or link.domain < _SWITCHED:
        return "bridged"
    multicasts = capability is not None and capability >= _data()["fabric"]["multicast_from"]
    return "multicast" if multicasts else "linked"


def graph_bytes(
    *, widths: Widths, facts: VllmFacts, layers: Any, tp: Numbers, max_seqs: Numbers, tokens: Numbers,
    draft_tokens: int, sizes: tuple[int, ...] | None, eager: bool, drafts_by_model: bool,
) -> Any:  # fmt: skip
    """CUDA graphs of one rank: a share fixed, one per graph and layer, one for the buffers of the largest batch,
    and those of drafting layers.

    ``layers`` is how many of the decoder's layers the rank holds. Batches 1, 2, 4, then steps of 8 up to 256 and of 16
    up to ``min(most, sequences · (1 + draft) · per_sequence, tokens)`` (vllm/config/vllm.py, _set_cudagraph_sizes).
    """
    if eager:
        return np.zeros(np.broadcast_shapes(np.shape(layers), np.shape(tp)))
    data = _data()["graphs"]
    if sizes is not None:
        count, largest = np.asarray(float(len(sizes))), np.asarray(float(max(sizes, default=0)))
    else:
        rule = facts.graph_sizes
        wanted = np.asarray(max_seqs) * (1 + draft_tokens) * rule.per_sequence
        largest = np.minimum(np.minimum(wanted, rule.most), tokens)
        count = capture_count(largest)
    graphs = count * facts.graph_sizes.kinds
    experts = data["experts_gib"] if widths.expert_layers else 0.0
    batch = largest / data["largest_batch"]
    drafts = data["drafts_gib"] if drafts_by_model else 0.0
    return (
        (data["fixed_gib"] + drafts) * GIB
        + data["per_graph_layer_mib"][facts.era] * MIB * graphs * np.asarray(layers)
        + batch * (data["largest_gib"] / np.asarray(tp) + experts) * GIB
    )


def capture_count(largest: Any) -> Any:
    """How many batch sizes are captured up to ``largest``: 1, 2, 4, 8, 16, … 248, 256, 272, …"""
    top = np.asarray(largest)
    small = (top >= 1) * 1 + (top >= 2) * 1 + (top >= 4) * 1
    return small + np.minimum(top, 255) // 8 + np.where(top >= 256, (top - 256) // 16 + 1, 0)


def charged_share() -> float:
    """The share of the graphs' real size that the engine's estimate charges, in the median."""
    return float(_data()["graphs"]["charged_share"])


def context_bytes(*, tp: Numbers, fabric: Fabric) -> Any:
    """The CUDA context of a worker, and what it sets up to talk to others, before the engine draws up its budget."""
    data = _data()["context_gib"]
    several = data["bridged" if fabric == "bridged" else "linked"]
    return np.where(np.asarray(tp) > 1, several, data["alone"]) * GIB


def spread() -> dict[str, float]:
    """Half-widths of the lines' 90 % intervals, as the data file names them."""
    return {key: value for key, value in _data()["spread"].items() if isinstance(value, int | float)}


def source(table: str) -> str:
    """Where the coefficients of ``table`` come from."""
    return str(_data()[table]["source"])


@contextmanager
def using(coefficients: dict[str, Any]) -> Iterator[None]:
    """Estimates inside this context use ``coefficients`` (shaped as `shipped`) instead of the shipped ones: for refits."""
    token = _in_use.set(coefficients)
    try:
        yield
    finally:
        _in_use.reset(token)


#: Coefficients in use where not the shipped ones.
_in_use: ContextVar[dict[str, Any] | None] = ContextVar("overhead coefficients", default=None)


def _data() -> dict[str, Any]:
    return _in_use.get() or shipped()


@cache
def shipped() -> dict[str, Any]:
    """The coefficients of the data file; not to be changed in place."""
    return read_data("coefficients/vllm_memory.toml")
