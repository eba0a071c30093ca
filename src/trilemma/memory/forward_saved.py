"""Everything that autograd holds after one forward pass with its loss, on one device: the sets of all layers and the ends."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.formats import catalogue
from trilemma.memory.activations import Shards, kept_tensors, tensor_bytes, trained_tensors
from trilemma.memory.layer_facts import kinds
from trilemma.memory.saved_tensors import layer_tensors, normalisation
from trilemma.memory.traits import implementation_facts, modelling_traits
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedRow:
    """A storage of one place: ``layers`` places hold one of ``bytes`` each."""

    place: str
    name: str
    bytes: float
    layers: int = 1

    @property
    def total_bytes(self) -> float:
        return self.bytes * self.layers


def forward_saved(model: Model, plan: TrainingPlan, *, seq: int) -> tuple[SavedRow, ...]:
    """Rows of what one micro-batch of ``plan`` keeps after forward, layers of a kind together.

    Beside decoder layers: token ids and labels (8 bytes a token each), rotary tables of the first layer (cosine and sine in
    the format of activations, once a sequence position), the last norm, the input of the output matrix and FP32
    log-probabilities, from which the loss is taken. Latent attention under sdpa is counted as a CPU runs it.
    """
    traits = modelling_traits(implementation_facts(plan.implementation)["modelling"], model.family)
    latent = any(mixer.is_latent for mixer in model.mixers)
    attention = "math" if latent and plan.attention == "sdpa" else plan.attention
    fmt = catalogue.get(plan.recipe.activations)
    tokens = int(plan.micro_batch) * seq
    shards = Shards(tokens=tokens, seq=seq, tp=1, sp=False)
    found, order = kinds(model)
    rows: list[SavedRow] = [SavedRow(place="embedding", name="token_ids", bytes=8.0 * tokens)]
    for kind, facts in enumerate(found):
        every = trained_tensors(layer_tensors(facts, traits, attention=attention), None)
        for tensor in kept_tensors(every, facts, plan.recompute, compiled=plan.compiled):
            size = float(tensor_bytes(tensor, shards, activation_bits=fmt.bits))
            rows.append(SavedRow(place=f"layer kind {kind}", name=tensor.name, bytes=size, layers=order.count(kind)))
    rotary = _rotary_dim(model)
    if rotary and plan.recompute.mode == "none":
        rows.append(SavedRow(place="first layer", name="rotary_tables", bytes=2.0 * seq * rotary * fmt.bits / 8))
    layer_norm = found[-1].layer_norm
    rows.extend(
        SavedRow(place="head", name=tensor.name, bytes=float(tensor_bytes(tensor, shards, activation_bits=fmt.bits)))
        for tensor in normalisation("final_norm", model.hidden, traits, layer_norm=layer_norm)
    )
    if traits.soft_cap:
        rows.append(SavedRow(place="head", name="capped_logits", bytes=tokens * model.vocab * fmt.bits / 8))
    rows += [
        SavedRow(place="head", name="output_input", bytes=tokens * model.hidden * fmt.bits / 8),
        SavedRow(place="loss", name="log_probabilities", bytes=4.0 * tokens * model.vocab),
        SavedRow(place="loss", name="labels", bytes=8.0 * tokens + 4),
    ]
    return tuple(rows)


def _rotary_dim(model: Model) -> int:
    """Width of rotary tables; 0 where positions are learned."""
    if any(tensor.name.endswith(("wpe.weight", "position_embeddings.weight")) for tensor in model.tensors):
        return 0
    return next((mixer.rotary_width for mixer in model.mixers if mixer.rotary_width), 0)
