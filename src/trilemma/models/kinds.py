"""What sets one model apart from another in memory: its kind of attention, or that it has experts."""

from __future__ import annotations

from trilemma.models.architecture import ExpertFfn, Model

#: Which label names a model that mixes kinds of attention.
_RAREST_FIRST = ("recurrent", "compressed", "mla", "sliding")


def family_kind(model: Model) -> str:
    """What sets the cache law of a model apart: recurrent, compressed, mla, sliding, else moe or dense."""
    labels = {mixer.label for mixer in model.mixers} - {"full"}
    rarest = next((label for label in _RAREST_FIRST if label in labels), min(labels, default=None))
    if rarest is not None:
        return rarest
    return "moe" if any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers) else "dense"
