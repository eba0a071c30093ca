"""What speculative decoding adds to a model: its own multi-token-prediction layers, or a draft model's layers and tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trilemma.errors import InputError, PlanWarning
from trilemma.models.architecture import Model
from trilemma.models.elsewhere import load_from_anywhere
from trilemma.plans import Draft

#: Methods that propose without layers of their own.
_WITHOUT_LAYERS = ("ngram", "suffix")


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting:
    """``model`` with the layers and tensors that draft as its MTP part; ``tokens`` proposed a step, 0 without drafting.

    ``has_layers`` is False where nothing of the draft is counted.
    """

    model: Model
    tokens: int = 0
    has_layers: bool = False
    warnings: tuple[PlanWarning, ...] = ()


def with_draft(model: Model, draft: Draft | None) -> Drafting:
    """Join ``model`` and what drafts for it; what cannot be counted is said.

    Draft models run on the same ranks as the target and keep a cache of their own (vllm/v1/spec_decode). EAGLE heads
    share the target's embedding and, before EAGLE-3, its output matrix.
    """
    if draft is None:
        return Drafting(model=model)
    if draft.method in _WITHOUT_LAYERS:
        return Drafting(model=model, tokens=draft.tokens)
    if draft.model is None:
        if "mtp" in draft.method and model.mtp_layers:
            return Drafting(model=model, tokens=draft.tokens, has_layers=True)
        what = (
            "has no multi-token-prediction layers"
            if "mtp" in draft.method
            else f"drafts by {draft.method} of no named model"
        )
        return _not_counted(model, draft, f"{model.name} {what}")
    try:
        other, _ = load_from_anywhere(draft.model)
    except InputError as error:
        return _not_counted(model, draft, error.flags)
    return Drafting(model=_joined(model, other, draft), tokens=draft.tokens, has_layers=True)


def _not_counted(model: Model, draft: Draft, why: str) -> Drafting:
    note = PlanWarning(code="draft-not-counted", message=f"the draft's weights and cache are not counted: {why}")
    return Drafting(model=model, tokens=draft.tokens, warnings=(note,))


def _joined(model: Model, other: Model, draft: Draft) -> Model:
    """``model`` with the layers of ``other`` after its own and its tensors as MTP part."""
    depth = len(model.layers)
    layers = tuple(replace(layer, index=depth + place) for place, layer in enumerate(other.layers))
    shared: tuple[str, ...] = ("embedding",) if draft.method.startswith("eagle") else ()
    if draft.method == "eagle":
        shared = ("embedding", "head")
    own = tuple(tensor for tensor in model.tensors if tensor.part != "mtp")
    added = tuple(
        replace(tensor, part="mtp", layer=None, name=f"draft.{tensor.name}")
        for tensor in other.tensors
        if tensor.role not in shared and tensor.part not in ("mtp", "vision")
    )
    return replace(model, mtp_layers=layers, tensors=own + added)
