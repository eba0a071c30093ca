"""A model made ready for questions about training memory: kinds of layers, tables of state, facts of the implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trilemma.errors import InputError, PlanWarning
from trilemma.formats import catalogue
from trilemma.memory.adapters import adapter_saved, adapter_tensors, targets
from trilemma.memory.autocast import casts_weights
from trilemma.memory.layer_facts import LayerFacts, kinds, tensors_of_kind
from trilemma.memory.saved_tensors import SavedTensor
from trilemma.memory.training_buffers import Placeholder, placeholders
from trilemma.memory.training_state import StateTable, TensorCosts
from trilemma.memory.traits import BlockTraits, implementation_facts, modelling_traits
from trilemma.models.architecture import Model, Tensor
from trilemma.plans.frameworks import runs_every_expert
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingModel:
    """Everything of a training question that does not depend on numbers of the plan.

    ``trained`` are roles of weights whose inputs are kept for gradients (None: all). ``adapter_saved`` is what adapters keep
    in a layer of each kind. ``placeholders`` are weight gradients that stand in for real ones. ``costs`` are those of each
    of ``tensors``, adapters among them.
    """

    model: Model
    kinds: tuple[LayerFacts, ...]
    order: tuple[int, ...]
    table: StateTable
    traits: BlockTraits
    facts: Mapping[str, Any]
    trained: frozenset[str] | None
    adapter_saved: tuple[tuple[SavedTensor, ...], ...]
    placeholders: tuple[Placeholder, ...]
    tensors: tuple[Tensor, ...]
    costs: TensorCosts
    inputs: Mapping[str, Any]
    formulas: Mapping[str, str]
    sources: Mapping[str, str]
    warnings: tuple[PlanWarning, ...]

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of weights (adapters alone where the others are frozen), master weights and moments of the whole model."""
        frozen = self.costs.frozen_format is not None
        total = 0.0
        for tensor in self.tensors:
            weights, _, _, master, optimizer, _, adapter = self.costs.of(tensor).tolist()
            total += adapter + optimizer + master + (0.0 if frozen else weights)
        return total


def prepare(model: Model, plan: TrainingPlan, workload: TrainingWorkload) -> TrainingModel:
    """Look at ``model`` once for all layouts."""
    facts = implementation_facts(plan.implementation, version=plan.version)
    found, order = kinds(model)
    if not found:
        raise InputError(f"{model.name} has no decoder layers to train")
    traits = modelling_traits(facts["modelling"], model.family)
    if plan.hidden_dropout or plan.attention_dropout:
        traits = replace(
            traits, hidden_dropout=plan.hidden_dropout or traits.hidden_dropout,
            attention_dropout=plan.attention_dropout or traits.attention_dropout,
        )  # fmt: skip
    if runs_every_expert(plan.implementation, model.family):
        traits = replace(traits, every_expert=True)
    if plan.fused_layers:
        traits = replace(traits, norm="fused", gated="fused")
    if casts_weights(plan, workload):
        traits = replace(traits, wide_norm=True, residual_bits=32.0, own_inputs=True)
    kept = workload.kept_format if plan.zero < 3 else None
    if kept is not None:
        # The embedding's rows, and so the sum that layers add to, are as wide as it; norms multiply by weights as wide.
        traits = replace(traits, wide_norm=True, residual_bits=_bits(kept))
    tensors: tuple[Tensor, ...] = model.tensors
    frozen: str | None = None
    trained: frozenset[str] | None = None
    saved: tuple[tuple[SavedTensor, ...], ...] = tuple(() for _ in found)
    by_kind = tensors_of_kind(model, order)
    if workload.trains_adapters:
        frozen = workload.held_format or "stored"
        # Adapters held in another format than activations (autocast) read copies of their own, and no product the input.
        casts = facts["adapter_casts"] and _bits(plan.recipe.weights) != _bits(plan.recipe.activations)
        own = None if plan.recipe.autocast else _bits(plan.recipe.weights)
        trained = frozenset() if casts else frozenset(tensor.role for tensor in targets(model, workload))
        tensors = (*tensors, *adapter_tensors(model, workload))
        saved = tuple(adapter_saved(by_kind[kind], workload, casts=casts, bits=own) for kind in range(len(found)))
    costs = TensorCosts(
        plan=plan, frozen_format=frozen, frozen_method=model.quantized_by, kept_format=kept,
        tied=model.tied_embeddings, trained_share=_share(workload, len(model.layers)),
    )  # fmt: skip
    table = StateTable.of(model, tensors, order, len(found), costs)
    return TrainingModel(
        model=model,
        kinds=found,
        order=order,
        table=table,
        traits=traits,
        facts=facts,
        trained=trained,
        adapter_saved=saved,
        placeholders=placeholders(one for group in by_kind.values() for one in group)
        if facts["dummy_wgrad"] and trained is None
        else (),
        tensors=tensors,
        costs=costs,
        inputs=_inputs(plan, workload),
        sources=_sources(plan, facts),
        formulas=FORMULAS,
        warnings=_warnings(model, found, plan, workload, fused_softmax=traits.fused_softmax),
    )


@dataclass(kw_only=True, slots=True)
class PreparedModels:
    """`prepare` of one model and load, done once for all plans that differ in numbers alone."""

    model: Model
    workload: TrainingWorkload
    _made: dict[tuple[object, ...], TrainingModel] = field(default_factory=dict)

    def of(self, plan: TrainingPlan) -> TrainingModel:
        dropout = (plan.hidden_dropout, plan.attention_dropout)
        # Where weights are sharded all of them are in one format.
        sharded = self.workload.kept_format is not None and plan.zero >= 3
        cast = casts_weights(plan, self.workload)
        fused = plan.fused_layers
        key = (
            plan.implementation,
            plan.version,
            plan.recipe,
            plan.optimizer,
            plan.attention,
            dropout,
            sharded,
            cast,
            fused,
        )
        if key not in self._made:
            self._made[key] = prepare(self.model, plan, self.workload)
        return self._made[key]


def _share(workload: TrainingWorkload, layers: int) -> float:
    trained = workload.trained_layers
    return 1.0 if trained is None or workload.trains_adapters else min(trained / layers, 1.0)


def _bits(name: str) -> float:
    return catalogue.get(name).bits


def _inputs(plan: TrainingPlan, workload: TrainingWorkload) -> dict[str, Any]:
    return {
        "seq": workload.seq,
        "global_batch": workload.global_batch,
        "micro_batch": plan.micro_batch,
        "recipe": plan.recipe.name,
        "optimizer": plan.optimizer.name,
        "zero": plan.zero,
        "recompute": plan.recompute.mode,
        "implementation": plan.implementation,
    }


FORMULAS = {
    "weights": "sum over tensors of elements · format, cut by tp, ep and stage; over dp·cp ranks under ZeRO-3",
    "adapter": "rank · (in + out) elements for every target",
    "gradients": "elements · gradient format; over dp·cp ranks from ZeRO-2 on",
    "master_weights": "elements · master format; over dp·cp ranks from ZeRO-1 on",
    "optimizer": "elements · sum of moment formats; over dp·cp ranks from ZeRO-1 on",
    "activations": "saved tensors of the stage's layers · micro-batches in flight",
    "logits": "tokens · vocabulary · bytes per logit at the peak of the loss, last stage",
    "workspace": "tensors made again for one layer, placeholder gradients, optimizer temporaries",
    "communication": "layers gathered whole, gradients being reduced, buckets of replicas, gathered sequences",
    "libraries": "workspaces of cuBLAS and Transformer Engine, inside the caching allocator",
    "context": "CUDA context and communicators, outside the caching allocator",
    "fragmentation": "reserved minus allocated, as a share of what a step allocates and frees",
    "offload_buffers": "two layers' worth of what is on its way to or from host memory",
}


def _warnings(
    model: Model, found: tuple[LayerFacts, ...], plan: TrainingPlan, workload: TrainingWorkload, *, fused_softmax: bool
) -> tuple[PlanWarning, ...]:
    notes: list[PlanWarning] = []
    mixers = [kind.mixer for kind in found if kind.mixer is not None]
    if any(not mixer.saved_measured for mixer in mixers):
        notes.append(
            PlanWarning(
                code="saved_tensors_assumed",
                message="what recurrent or compressed attention layers keep is read from code, not from measurements",
            )
        )
    if model.multimodal:
        notes.append(
            PlanWarning(code="text_only", message="vision towers are not counted: the language model alone is trained")
        )
    if workload.filling == 1.0 and workload.trains_adapters:
        notes.append(
            PlanWarning(code="full_sequences", message="sequences are taken as full; padded batches need less")
        )
    if np.any(np.asarray(plan.layout.tp) > 1) and implementation_facts(plan.implementation).get("record_streams"):
        notes.append(
            PlanWarning(
                code="record_streams",
                message="TORCH_NCCL_AVOID_RECORD_STREAMS=1 is assumed; without it freed blocks of tensor-parallel"
                " collectives stay alive and the peak rises",
            )
        )
    if any(mixer.is_latent for mixer in mixers) and plan.attention == "eager" and not fused_softmax:
        notes.append(
            PlanWarning(code="latent_eager", message="eager latent attention is counted like eager softmax attention")
        )
    return tuple(notes)


def _sources(plan: TrainingPlan, facts: Mapping[str, Any]) -> dict[str, str]:
    """Where each line comes from: the recipe, the optimizer, what autograd was seen to keep, the framework's own code."""
    state = dict.fromkeys(("weights", "gradients", "master_weights"), plan.recipe.source)
    kept = "tensors that autograd keeps, counted on real layers (docs/training-memory.md)"
    fitted = "allocator and framework buffers (data/coefficients/training_memory.toml)"
    return {
        **dict.fromkeys(
            ("communication", "context", "fragmentation", "libraries", "workspace", "offload_buffers"), fitted
        ),
        **state,
        "optimizer": plan.optimizer.source,
        "activations": kept,
        "logits": str(facts.get("source", "")),
    }
