"""The options in force: what the user said, what the engine fills in for this version, card and model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from trilemma.engines.draft import Drafting
from trilemma.engines.loading import computing_format
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.engines.vllm.kv_formats import kv_format
from trilemma.errors import InputError, PlanWarning
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model
from trilemma.plans import ServeOptions
from trilemma.quantities import Numbers

StateMode = Literal["none", "align", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmInForce:
    """Options with the engine's defaults filled in; ``warnings`` list what was assumed."""

    memory_fraction: float
    context: int
    max_seqs: Numbers
    max_batched_tokens: Numbers
    kv: Format
    dtype: Format
    state_mode: StateMode
    draft_tokens: int
    drafts_by_layers: bool
    warnings: tuple[PlanWarning, ...]


def in_force(
    drafting: Drafting, options: ServeOptions, facts: VllmFacts, *, capacity_bytes: float, card: str
) -> VllmInForce:
    """Fill in what ``options`` leave open. Raises `InputError` for values that no engine accepts."""
    warnings: list[PlanWarning] = []
    model = drafting.model
    fraction = facts.memory_fraction if options.memory_fraction is None else options.memory_fraction
    if not 0 < fraction <= 1:
        raise InputError(f"--gpu-memory-utilization {fraction} is out of range; give a share above 0 and up to 1")
    context = options.context or model.max_positions
    if context is None:
        context = int(facts.coefficients["unstated"]["context"])
        warnings.append(
            PlanWarning(code="assumed-context", message=f"{model.name} states no length; {context} tokens assumed")
        )
    if not 0 < context <= 2**40:
        raise InputError(f"--max-model-len {context} is out of range; give a whole number of at least 1")
    seqs, tokens = _batches(model, options, facts, context, capacity_bytes, card)
    return VllmInForce(
        memory_fraction=fraction,
        context=context,
        max_seqs=seqs,
        max_batched_tokens=tokens,
        kv=_kv(model, options),
        dtype=computing_format(model, options),
        state_mode=_state_mode(model, options, facts),
        draft_tokens=drafting.tokens,
        drafts_by_layers=drafting.has_layers,
        warnings=tuple(warnings),
    )


def _batches(
    model: Model, options: ServeOptions, facts: VllmFacts, context: int, capacity_bytes: float, card: str
) -> tuple[Numbers, Numbers]:
    """Sequences and batched tokens: by size of card; whole prompts need a batch as long as the longest of them."""
    default_seqs, default_tokens = facts.batch_sizes_by_card.of_card(capacity_bytes, card)
    if facts.states_at_start and any(mixer.keeps_state for mixer in model.mixers):
        default_seqs = min(default_seqs, facts.states_at_start["sequences"])
    seqs: Any = default_seqs if options.max_seqs is None else options.max_seqs
    chunked = facts.chunked_prefill if options.chunked_prefill is None else options.chunked_prefill
    tokens: Any = options.max_batched_tokens
    if tokens is None:
        long = facts.long_prompts_chunked
        if not chunked and options.chunked_prefill is None and 0 < long["above"] < context:
            chunked, default_tokens = True, long["tokens"]
        tokens = default_tokens if chunked else max(default_tokens, context)
        tokens = np.minimum(np.maximum(tokens, seqs), np.asarray(seqs) * float(context))
        tokens = int(tokens) if np.ndim(tokens) == 0 else tokens
    if np.min(seqs) < 1 or np.min(tokens) < 1:
        raise InputError("--max-num-seqs and --max-num-batched-tokens must be whole numbers of at least 1")
    return seqs, tokens


def _kv(model: Model, options: ServeOptions) -> Format:
    """``auto`` follows the checkpoint's own wish, FP8 for sparse and compressed attention, else the model's format."""
    asked = (options.kv_dtype or "auto").lower()
    dtype = computing_format(model, options)
    if asked != "auto":
        return kv_format(asked, model_dtype=dtype)
    if model.quantization is not None and model.quantization.kv_format:
        return kv_format(model.quantization.kv_format, model_dtype=dtype)
    if any(mixer.is_compressed or (mixer.is_latent and mixer.is_sparse) for mixer in model.mixers):
        return kv_format("fp8_ds_mla", model_dtype=dtype)
    return dtype


def _state_mode(model: Model, options: ServeOptions, facts: VllmFacts) -> StateMode:
    """Recurrent states are kept at block boundaries only where prefix caching is on (vllm/config/cache.py)."""
    if not any(mixer.keeps_state for mixer in model.mixers):
        return "none"
    if options.mamba_cache_mode in ("none", "align", "all"):
        return cast(StateMode, options.mamba_cache_mode)
    caching = facts.state_prefix_caching if options.prefix_caching is None else options.prefix_caching
    return "align" if caching else "none"
