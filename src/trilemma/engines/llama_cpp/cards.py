"""Bytes on each card and on the host, once slots, context and layers are settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trilemma.engines.layer_cache import layer_caches
from trilemma.engines.llama_cpp.facts import LlamaCppFacts
from trilemma.engines.llama_cpp.placement import LayerBytes, layers_of_card
from trilemma.engines.rank_memory import context_bytes
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model
from trilemma.plans import ServeOptions
from trilemma.quantities import MIB, round_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What a start settles: ``context`` tokens of one slot, padded as the engine pads it, ``cells`` of the cache, ``slots``,
    ``layers`` on cards."""

    context: int
    cells: int
    slots: int
    shared: bool
    layers: int
    micro_batch: int
    keys: Format
    values: Format
    flash: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CardBytes:
    """Bytes on one card."""

    weights: float
    vision: float
    draft: float
    kv: float
    states: float
    activations: float
    logits: float
    context: float

    @property
    def total(self) -> float:
        held = self.weights + self.vision + self.draft + self.kv + self.states
        return held + self.activations + self.logits + self.context


def cells_of(context: int, slots: int, shared: bool, facts: LlamaCppFacts) -> int:
    """Cells of the cache: one context where slots share it, else a padded one for each slot."""
    padded = int(round_up(context, facts.context_padding))
    return padded if shared else padded * slots


def cache_format(name: str | None, shown: str) -> Format:
    """The format of K or V; without one 16-bit floats. Raises `InputError`."""
    asked = (name or "f16").lower()
    known = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "auto": "fp16", "fp16": "fp16"}
    known |= {name: name for name in ("q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0")}
    if asked not in known:
        raise InputError(
            f"{shown} {asked[:60]!r} is not a cache type of llama.cpp; use f16, bf16, q8_0, q5_1, q5_0, iq4_nl, q4_1 or q4_0"
        )
    return catalogue.get(known[asked])


def card_bytes(
    index: int, model: Model, pieces: LayerBytes, choices: Choices, options: ServeOptions, facts: LlamaCppFacts,
    ends: Sequence[float], rows: int,
) -> CardBytes:  # fmt: skip
    """Bytes on card ``index`` of those whose shares end at ``ends``; rows of matrices divide where ``rows`` cards share them,
    the cache stays on the first."""
    depth, cards = len(model.layers), len(ends)
    if choices.layers == 0:
        compute = compute_bytes(model, choices, facts, cards, False)
        return CardBytes(
            weights=0,
            vision=pieces.vision,
            draft=0,
            kv=0,
            states=0,
            activations=compute,
            logits=0,
            context=_context(facts),
        )
    start, stop, head = layers_of_card(depth, choices.layers, ends, index)
    held = float(np.sum(pieces.layers[start:stop] - pieces.on_host[start:stop])) + (pieces.head if head else 0.0)
    kv = states = 0.0
    if options.extra.get("kv-offload", True) is not False:
        kv, states = cache_bytes(model, choices, facts, options, start, stop)
    micro = choices.micro_batch
    logits = micro * float(model.vocab) * facts.coefficients["logits"]["bytes"] if head and pieces.head else 0.0
    return CardBytes(
        weights=held / rows,
        vision=pieces.vision if index == 0 and not options.text_only else 0.0,
        draft=draft_bytes(model, pieces, choices, options, facts) if head else 0.0,
        kv=kv,
        states=states,
        activations=compute_bytes(model, choices, facts, cards, bool(np.any(pieces.on_host))),
        logits=logits,
        context=_context(facts),
    )


def cache_bytes(
    model: Model, choices: Choices, facts: LlamaCppFacts, options: ServeOptions, start: int, stop: int
) -> tuple[float, float]:
    """(bytes of tokens, bytes of states) of layers ``start`` up to ``stop``; windows keep ``window · slots + micro-batch``."""
    kv = states = 0.0
    unused = model.family in facts.windows_unused
    keeps_windows = facts.windows_kept and not unused and not options.extra.get("swa-full")
    for cache in layer_caches(model.layers, tp=1, kv_format=choices.keys, value_format=choices.values)[start:stop]:
        cells = choices.cells
        if cache.span and keeps_windows:
            each = cache.span * (choices.slots if choices.shared else 1) + choices.micro_batch
            streams = 1 if choices.shared else choices.slots
            cells = min(cells, int(round_up(each, facts.context_padding)) * streams)
        kv += float(cache.full) * choices.cells + float(cache.window) * cells
        states += float(cache.state) * choices.slots
    return kv, states


def draft_bytes(
    model: Model, pieces: LayerBytes, choices: Choices, options: ServeOptions, facts: LlamaCppFacts
) -> float:
    """The context that drafts: its weights, a cache of its own as long as the target's, logits of a micro-batch.

    Its cache is 16-bit unless ``--cache-type-k-draft`` says otherwise, of the layers that draft, in some families of all layers
    beside (common/speculative.cpp; src/llama-model.cpp, create_memory). Nothing where no layer drafts.
    """
    if not model.mtp_layers:
        return 0.0
    extra = options.extra
    keys, values = (cache_format(extra.get(f"cache-type-{one}-draft"), f"--cache-type-{one}-draft") for one in "kv")
    every = any(model.family.startswith(family) for family in facts.draft_caches_every_layer)
    layers = (*(model.layers if every else ()), *model.mtp_layers)
    caches = layer_caches(layers, tp=1, kv_format=keys, value_format=values)
    kept = sum(float(one.full + one.window) * choices.cells + float(one.state) * choices.slots for one in caches)
    logits = choices.micro_batch * float(model.vocab) * facts.coefficients["logits"]["bytes"]
    return float(pieces.draft + kept + logits)


def compute_bytes(model: Model, choices: Choices, facts: LlamaCppFacts, cards: int, overridden: bool) -> float:
    """The compute buffer without logits: hidden rows and masks of a micro-batch; scores where attention is not fused.

    Cards that work in turn keep copies of what goes in, unless tensors are kept on the host.
    """
    data = facts.coefficients["compute"]
    micro, depth = choices.micro_batch, len(model.layers)
    cells = choices.cells if choices.shared else choices.cells // max(choices.slots, 1)
    pipelined = cards > 1 and choices.layers > depth and not overridden
    copies = data["pipeline_copies"] if pipelined else 1
    attends = any(not mixer.keeps_state for mixer in model.mixers)
    mask = micro * cells * (data["mask_bytes_cast"] if choices.flash else data["mask_bytes"]) * copies if attends else 0
    hidden = micro * model.hidden * data["hidden_bytes"] * copies
    widest = max((getattr(layer.ffn, "intermediate", 0) for layer in model.layers if layer.ffn), default=0)
    top_k = max((getattr(layer.ffn, "top_k", 1) for layer in model.layers if layer.ffn), default=1)
    inner = micro * max(widest * top_k, model.hidden) * data["hidden_bytes"]
    heads = max((mixer.heads for mixer in model.mixers if not mixer.keeps_state), default=0)
    scores = 0 if choices.flash else micro * cells * heads * data["score_bytes"]
    return float(mask + hidden + inner + scores + data["fixed_mib"] * MIB)


def _context(facts: LlamaCppFacts) -> float:
    return float(context_bytes(facts.coefficients, ranks=1, fabric="bridged"))


def host_bytes(
    model: Model,
    pieces: LayerBytes,
    choices: Choices,
    options: ServeOptions,
    facts: LlamaCppFacts,
) -> float:
    """The embedding, layers and tensors left off the cards, and their cache."""
    depth = len(model.layers)
    first = max(depth + 1 - choices.layers, 0)
    kept = float(np.sum(pieces.layers[:first]) + np.sum(pieces.on_host[first:])) + pieces.embedding
    kept += pieces.head if choices.layers == 0 else 0.0
    offloads = options.extra.get("kv-offload", True) is not False
    kv, states = cache_bytes(model, choices, facts, options, 0, min(first, depth) if offloads else depth)
    return kept + kv + states
