"""Models and servers that generate nothing: their words answer with vectors, classes, scores or rewards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trilemma.engines import traits_of
from trilemma.models.architecture import Model
from trilemma.plans import Plan
from trilemma.versions import padded, parse_version

#: Words by which publishers name models whose answer is a vector or a score.
_WORDS = frozenset(("embedding", "embeddings", "embed", "reranker", "rerank", "bge", "gte", "e5"))
_RANKS = frozenset(("reranker", "rerank"))
#: What stands for a document in a command that embeds one.
_DOCUMENT = "a document"
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
    return any(mixer.generates_nothing for mixer in model.mixers) or bool(_WORDS & _words(model))


def asked_to_pool(plan: Plan, model: Model) -> Plan:
    """``plan`` with the switch without which its engine refuses to embed, or to rank, with a model that is made for that."""
    traits = traits_of(plan.engine.name)
    switch = traits.pooling_asked.get("rank" if _RANKS & _words(model) else "embed")
    given = {name for pool in plan.pools for name in pool.options.extra}
    if switch is None or not named_so(model) or given & set(traits.pooling_flags):
        return plan
    return replace(
        plan,
        pools=tuple(
            replace(pool, options=replace(pool.options, extra={**pool.options.extra, switch: True}))
            for pool in plan.pools
        ),
    )


def document_behind(plan: Plan, model: Model) -> tuple[str, ...]:
    """The word behind the model in a command that embeds one document and ends, where the engine's is such a one."""
    traits = traits_of(plan.engine.name)
    return (_DOCUMENT,) if named_so(model) and traits.embeds_documents_from and embeds_documents(plan) else ()


def embeds_documents(plan: Plan) -> bool:
    """Whether the version of ``plan`` takes documents in its command, where the engine ever did; the newest does."""
    since, version = traits_of(plan.engine.name).embeds_documents_from, plan.engine.version
    if not since or version is None:
        return True
    name = plan.engine.name
    return padded(parse_version(version, engine=name)) >= padded(parse_version(since, engine=name))


def _words(model: Model) -> set[str]:
    return set(_WORD.split(model.name[:_MOST].rpartition("/")[2].lower()))
