"""Cards of several kinds that hold layers in turn: each part of a model on its own machine, their times added.

One request passes the cards one after another, so its time is the sum over the cards; nothing is shared out evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.timing.host_weights import HostPart, halves, split_work
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork, model_work
from trilemma.timing.serving_terms import ServingTerms

#: (matrices, layers with attention) of one card.
CardPart = tuple[frozenset[str], frozenset[int]]


def machines(
    model: Model, cluster: Cluster, *, engine: str, version: str | None = None, terms: ServingTerms | None = None
) -> tuple[Machine, ...]:
    """A machine for each card of ``cluster``, with the terms of its own kind (``terms`` in place of those shipped)."""
    alone = [replace(cluster, accelerator=card, gpus=1, gpus_per_node=1, cards=()) for card in cluster.every]
    return tuple(
        Machine.serving(one, work=model_work(model, one.accelerator), engine=engine, version=version, terms=terms)
        for one in alone
    )


def work_of_cards(
    model: Model,
    cluster: Cluster,
    parts: Sequence[CardPart],
    on_host: HostPart | None,
    *,
    engine: str,
    version: str | None = None,
    terms: ServingTerms | None = None,
) -> ModelWork:
    """``model``'s work with the parts of the cards after the first in ``beside``, each with its machine.

    ``parts`` has one entry for each card, in order; what is in none of them and not on the host is the first card's.
    """
    rest = model
    beside: list[tuple[ModelWork, Machine]] = []
    for (tensors, layers), machine in list(
        zip(parts, machines(model, cluster, engine=engine, version=version, terms=terms), strict=True)
    )[1:]:
        if tensors or layers:
            rest, own, _ = halves(rest, tensors, layers)
            beside.append((model_work(own, machine.accelerator), machine))
    return replace(split_work(rest, cluster.accelerator, on_host), beside=tuple(beside))
