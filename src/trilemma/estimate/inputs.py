"""The question of an estimate restated in full as plain data, defaults filled in: ``inputs`` of its document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trilemma.hardware.price import price_words
from trilemma.models.catalogue import hub_id
from trilemma.models.parameters import count
from trilemma.plans.plan import Plan
from trilemma.plans.words import plan_words
from trilemma.question import Question, ServingQuestion, TrainingQuestion

if TYPE_CHECKING:
    from trilemma.estimate.estimate import Estimate, Inputs

_LOAD = (
    "isl",
    "osl",
    "concurrency",
    "rate",
    "context",
    "prefix_hit",
    "sampling",
    "ttft_ms",
    "tpot_ms",
    "images",
    "image_size",
    "image_tokens",
)


def inputs_of(answer: Estimate) -> Inputs:
    """Model, cluster, workload, plan and engine of ``answer``."""
    question = answer.question
    inputs = _of_serving(question, answer) if isinstance(question.plan, Plan) else _of_training(question)
    return {
        "model": inputs["model"], "cluster": inputs["cluster"], "workload": inputs["workload"], "plan": inputs["plan"],
        "engine": {"name": question.engine, "version": answer.version},
    }  # fmt: skip


def _of_serving(question: ServingQuestion, answer: Estimate) -> dict[str, Any]:
    from trilemma.plans.document import plan_to_document

    model, cluster = question.model, question.cluster
    named = {"served_as": question.served_as} if question.served_as not in (None, hub_id(model.name)) else {}
    stored = {} if question.scheme is None else {"precision": question.scheme, "checkpoint": question.checkpoint}
    host = {
        "name": cluster.around.name,
        "bytes_per_s": cluster.around.bytes_per_s.value,
        "assumed": cluster.around.assumed,
    }
    return {
        "model": {
            **_model(question),
            "quantization": model.quantization.method if model.quantization else None,
            "source": model.source,
            **named,
            **stored,
        },
        "cluster": {**_cluster(question), **({"host": host} if answer.uses_host else {})},
        "workload": {
            name: getattr(question.workload, name)
            for name in _LOAD
            if getattr(question.workload, name) is not None
        },
        "plan": {
            **plan_to_document(question.plan),
            "summary": plan_words(question.plan),
            "context": answer.context,
        },
    }  # fmt: skip


def _of_training(question: TrainingQuestion) -> dict[str, Any]:
    from trilemma.plans.training_document import training_plan_to_document, training_workload_to_document

    return {
        "model": {
            **_model(question),
            "layers": len(question.model.layers),
            "source": question.model.source,
        },
        "cluster": {**_cluster(question), "nodes": question.cluster.nodes},
        "workload": training_workload_to_document(question.workload),
        "plan": {**training_plan_to_document(question.plan), "summary": plan_words(question.plan)},
    }


def _model(question: Question[Any, Any]) -> dict[str, Any]:
    counted = count(question.model)
    return {
        "name": question.model.name,
        "family": question.model.family,
        "parameters": counted.total,
        "active_parameters": counted.active,
    }


def _cluster(question: Question[Any, Any]) -> dict[str, Any]:
    cluster = question.cluster
    return {
        "accelerator": {
            "id": "+".join(card.id for card in cluster.cards or (cluster.accelerator,)),
            "name": cluster.name,
            "price": [price_words(card) for card in {card.id: card for card in cluster.every}.values()],
        },
        "gpus": cluster.gpus,
        "gpus_per_node": cluster.gpus_per_node,
        **({} if cluster.power_cap_w is None else {"power_cap_w": cluster.power_cap_w}),
        **({} if cluster.storage_bytes_per_s is None else {"storage_bytes_per_s": cluster.storage_bytes_per_s}),
    }
