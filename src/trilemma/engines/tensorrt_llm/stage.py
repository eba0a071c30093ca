"""What one pipeline stage of TensorRT-LLM needs of its card, cache apart, and what a token of its cache takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.engines.layer_cache import layer_caches
from trilemma.engines.loading import absorbed_copies
from trilemma.engines.rank_memory import (
    Weights,
    Widths,
    buffer_bytes,
    context_bytes,
    expert_bytes,
    fabric_of,
    forward_bytes,
    graph_bytes,
    rungs,
)
from trilemma.engines.stages import LayerSpan, PipelineStage
from trilemma.engines.start_up import SettledStart
from trilemma.engines.tensorrt_llm.facts import TensorrtLlmFacts
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model
from trilemma.plans import ServeOptions
from trilemma.quantities import GIB, ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorrtLlmSettled(SettledStart):
    """``beyond``: layouts that the engine does not run; ``built``: whether the engine is built ahead by TensorRT; ``shared``:
    replicas attend alone; ``extra`` layers draft.
    """

    facts: TensorrtLlmFacts
    dtype: Format
    block: int
    shared: Any
    beyond: Any
    built: bool
    extra: int

    @property
    def ranks(self) -> Any:
        return self.plans.tp * np.where(self.shared, self.plans.dp, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorrtLlmStage(PipelineStage):
    """``rate``: bytes a token, ``state``: bytes of one request's states; arrays (plans,)."""

    rate: Any
    state: Any


def stages(settled: TensorrtLlmSettled) -> list[TensorrtLlmStage]:
    """Every pipeline stage by itself."""
    model, plans = settled.model, settled.plans
    weights = Weights(model, extra=absorbed_copies(model), vocab_padding=settled.facts.vocab_padding)
    layers = (*model.layers, *(model.mtp_layers if settled.extra else ()))
    caches = layer_caches(layers, tp=plans.tp, kv_format=settled.kv)
    spans = [LayerSpan.of(name, model, plans, drafting_layers=settled.extra) for name in plans.stages]
    return [
        TensorrtLlmStage(
            lines=_lines(settled, span, weights),
            rate=np.maximum(span.sum_of([cache.full + cache.window for cache in caches]), 1e-9),
            state=span.sum_of([cache.state for cache in caches]),
        )
        for span in spans
    ]


def _lines(settled: TensorrtLlmSettled, span: LayerSpan, weights: Weights) -> dict[str, Any]:
    """The lines of one stage, cache apart; engines built ahead capture nothing and keep what sampling needs of every sequence."""
    plans, options, facts, ranks = settled.plans, settled.options, settled.facts, settled.ranks
    memory, widths, none = facts.coefficients, Widths.of(settled.model), np.zeros(settled.plans.shape)
    built = settled.built
    fabric = fabric_of(settled.asked.accelerator, memory)
    alone, several = buffer_bytes(memory, ranks=ranks, fabric=fabric)
    if built:
        alone = np.full(np.shape(ranks), memory["non_torch_gib"]["built"] * GIB)
    row = np.asarray(plans.tokens) * (settled.dtype.bits / 8)
    activations = forward_bytes(widths, memory, row=row, tp=ranks) + expert_bytes(
        widths, memory, row=row, tp=ranks, ep=plans.ep
    )
    captured = 0 if built else _graph_batch(options, facts)
    graphs = graph_bytes(
        widths,
        memory,
        layers=span.layers,
        graphs=rungs(memory["graphs"]["ladder"], captured),
        largest=captured,
        tp=ranks,
    )
    logits = _logit_rows(settled) * float(settled.model.vocab) * memory["logits"]["bytes"]
    return {
        **span.loaded(
            weights,
            attention_tp=plans.tp,
            tp=ranks,
            ep=plans.ep,
            drafts=bool(settled.extra),
            text_only=options.text_only,
        ),
        "context": context_bytes(memory, ranks=ranks * plans.pp, fabric=fabric) + none,
        "activations": none + activations,
        "logits": span.last * logits + none,
        "cuda_graphs": none + graphs,
        "workspace": alone + several + none,
    }


def _logit_rows(settled: TensorrtLlmSettled) -> Any:
    """Rows of logits at the peak: a profiled pass is made of the longest prompts that it takes, each of which ends in one;
    engines built ahead keep several for every sequence that they may run.
    """
    plans = settled.plans
    if settled.built:
        return plans.seqs * settled.facts.coefficients["logits"]["built_rows"]
    return np.minimum(plans.seqs, ceil_div(plans.tokens, np.minimum(plans.tokens, settled.context)))


def is_built(options: ServeOptions, facts: TensorrtLlmFacts) -> bool:
    """Whether TensorRT built the engine ahead, rather than PyTorch running the model."""
    return str(options.extra.get("backend", facts.backend)) in ("tensorrt", "trt")


def untied(model: Model) -> Model:
    """``model`` with an output matrix of its own: an engine that TensorRT builds holds tied embeddings twice."""
    table = next((one for one in model.tensors if one.role == "embedding"), None)
    if not model.tied_embeddings or table is None:
        return model
    return replace(model, tied_embeddings=False, tensors=(*model.tensors, replace(table, role="head")))


def _graph_batch(options: ServeOptions, facts: TensorrtLlmFacts) -> int:
    if options.eager:
        return 0
    if options.cuda_graph_sizes is not None:
        return max(options.cuda_graph_sizes, default=0)
    asked = options.extra.get("cuda_graph_config", {})
    return int(asked.get("max_batch_size") or facts.graph_batch) if isinstance(asked, dict) else facts.graph_batch
