"""Every object that export writes, against the schemas of Kubernetes itself (package kubernetes-validate)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from fleets import PLANS

from trilemma.engines import deployer
from trilemma.engines.deployment import benchmark, kubernetes, llm_d
from trilemma.plans import Plan

validator = pytest.importorskip("kubernetes_validate")


def plain(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Objects whose schemas are known: the pods of a LeaderWorkerSet as those of a Deployment."""
    if document["kind"] != "LeaderWorkerSet":
        return [document]
    group = document["spec"]["leaderWorkerTemplate"]
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": document["metadata"],
            "spec": {"selector": {"matchLabels": group[key]["metadata"]["labels"]}, "template": group[key]},
        }
        for key in ("leaderTemplate", "workerTemplate")
    ]


@pytest.mark.parametrize("name", PLANS)
def test_objects_hold_against_the_schemas(name: str) -> None:
    plan: Plan = PLANS[name]
    make = deployer(plan.engine.name)
    fleet = make(model="/models/org GGUF", plan=plan, version=None, maker="nvidia", per_node=8)
    files = kubernetes.manifests(fleet) | benchmark.on_kubernetes(fleet, ["true"], results="bench.json")
    if fleet.metrics is not None:
        files |= {file: text for file, text in llm_d.files(fleet).items() if file != llm_d.ROUTER_VALUES}
    documents = [one for file, text in files.items() if file.endswith(".yaml") for one in yaml.safe_load_all(text)]
    assert documents
    for document in documents:
        for one in plain(document):
            validator.validate(one, validator.latest_version(), strict=True)
