"""vLLM's profiling run: the activation peak that it measures, in two lines, and which batches it captures.

Coefficients: ``data/coefficients/serving_memory/vllm.toml``, by version and never by model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.rank_memory import Widths, expert_bytes, forward_bytes, rungs
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.models.architecture import Model
from trilemma.models.attention import Mixer
from trilemma.quantities import GIB, Numbers, ceil_div


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
    memory = facts.coefficients
    forward = memory["forward"]
    row = np.asarray(tokens) * dtype_bytes
    logits = np.asarray(max_seqs) * float(widths.vocab) * memory["sampler"]["bytes_per_logit"]
    sampler = np.asarray(last) * (logits + forward["logit_hidden_copies"] * (row * widths.hidden))
    encoder = 0.0 if text_only or not model.multimodal else _encoder_bytes(model, facts, tp)
    latents = [mixer for mixer in model.mixers if mixer.is_latent]
    sparse = max((mixer.latent_width for mixer in latents if mixer.is_sparse), default=0)
    if sparse:
        attention = _indexer_bytes(facts, tokens=tokens, context=context, compute_capability=compute_capability)
    else:
        attention = _latent_bytes(latents, facts, tp=tp, context=context, dtype_bytes=dtype_bytes)
    gathered = float(memory["sparse"]["context_copies"]) * context * sparse * dtype_bytes
    workspace = np.maximum(expert_bytes(widths, memory, row=row, tp=tp, ep=ep), gathered)
    layer = forward_bytes(widths, memory, row=row, tp=tp)
    peak = forward["fixed_gib"] * GIB + workspace + np.maximum(sampler, layer + encoder + attention)
    shown = np.minimum(np.asarray(last) * logits, peak)
    return Peak(logits=shown, activations=peak - shown)


def _latent_bytes(latents: Sequence[Mixer], facts: VllmFacts, *, tp: Numbers, context: int, dtype_bytes: float) -> Any:
    """Dense latent attention: up to ``most_tokens`` cached latents unpacked into the K and V of a rank's heads."""
    data = facts.coefficients["latent"]
    heads = max((mixer.heads for mixer in latents), default=0)
    width = max((mixer.unpacked_width for mixer in latents), default=0)
    tokens = min(data["contexts"] * context, data["most_tokens"])
    return tokens * ceil_div(heads, np.asarray(tp)) * width * dtype_bytes


def _indexer_bytes(facts: VllmFacts, *, tokens: Numbers, context: int, compute_capability: float | None) -> Any:
    """Logits of the sparse indexer, in chunks of fixed size, or ``tokens · context`` in FP32 where kernels for chunks lack."""
    data = facts.coefficients["sparse"]
    if compute_capability in data["whole_logits_on"]:
        return np.asarray(tokens) * float(context) * data["logit_bytes"]
    return np.full(np.shape(tokens), data["indexer_gib"] * GIB)


def _encoder_bytes(model: Model, facts: VllmFacts, tp: Numbers) -> Any:
    """Bytes of the largest image in the tower: ``(copies + split / tp) · patches · hidden`` in 16 bits."""
    data = facts.coefficients["encoder"]
    image, patch = model.vision.get("image"), model.vision.get("patch")
    if image and patch:
        patches = (image // patch) ** 2 * model.vision.get("tiles", 1)
    else:
        known = (row["patches"] for row in data["patches"] if model.family.startswith(row["family"]))
        patches = next(known, data["otherwise"])
    copies = data["hidden_copies"] + data["split_copies"] / np.asarray(tp)
    return copies * patches * model.vision.get("hidden", 0) * data["bytes"]


def captured(
    facts: VllmFacts, *, max_seqs: Numbers, tokens: Numbers, draft_tokens: int, sizes: tuple[int, ...] | None, eager: bool
) -> tuple[Any, Any]:  # fmt: skip
    """(graphs, largest batch): every size once in each mode, ``sizes`` or those of the ladder up to
    ``min(most, sequences · (1 + draft) · per_sequence, tokens)`` (vllm/config/vllm.py, _set_cudagraph_sizes).
    """
    rule = facts.graph_sizes
    if eager:
        return np.zeros(()), np.zeros(())
    if sizes is not None:
        return np.asarray(float(len(sizes))) * rule.kinds, np.asarray(float(max(sizes, default=0)))
    wanted = np.asarray(max_seqs) * (1 + draft_tokens) * rule.per_sequence
    largest = np.minimum(np.minimum(wanted, rule.most), tokens)
    return rungs(facts.coefficients["graphs"]["ladder"], largest) * rule.kinds, largest
