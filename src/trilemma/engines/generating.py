"""Models and servers that generate nothing: their words answer with vectors, classes, scores or rewards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trilemma.engines import traits_of
from trilemma.models.architecture import Model

#: Words by which publishers name models whose answer is a vector or a score.
_WORDS = frozenset(("embedding", "embeddings", "embed", "reranker", "rerank", "bge", "gte", "e5"))
_WORD = re.compile(r"[^a-z0-9]+")
_MOST = 300


def generates_nothing(model: Model, engine: str, extra: Mapping[str, Any]) -> bool:
    """Whether the options ``extra`` ask for a pooling runner of ``engine``, or the model is named as one for such answers."""
    asked = traits_of(engine).pooling_flags
    if any(extra.get(flag) in values for flag, values in asked.items() if flag in extra):
        return True
    return named_so(model)


def named_so(model: Model) -> bool:
    """Whether the model's name says that it answers with vectors or scores, or its layers leave it nothing else."""
    return any(mixer.generates_nothing for mixer in model.mixers) or bool(
        _WORDS & set(_WORD.split(model.name[:_MOST].rpartition("/")[2].lower()))
    )
