"""AdmissionReview v1 documents as an API server sends them, by what is asked to be let in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def review(manifest: Mapping[str, Any], *, operation: str = "CREATE", uid: str = UID) -> dict[str, Any]:
    """The frame that k8s.io/api/admission/v1 gives to every request."""
    group, _, version = str(manifest.get("apiVersion", "v1")).rpartition("/")
    kind = {"group": group, "version": version, "kind": manifest.get("kind", "")}
    resource = {"group": group, "version": version, "resource": f"{str(kind['kind']).lower()}s"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": manifest.get("metadata", {}).get("name", ""),
            "namespace": "models",
            "operation": operation,
            "userInfo": {"username": "system:serviceaccount:models:deployer", "groups": ["system:authenticated"]},
            "object": manifest,
            "oldObject": None,
            "dryRun": False,
            "options": {
                "apiVersion": "meta.k8s.io/v1",
                "kind": "CreateOptions",
                "fieldManager": "kubectl-client-side-apply",
            },
        },
    }


def body(manifest: Mapping[str, Any], **frame: Any) -> bytes:
    return json.dumps(review(manifest, **frame)).encode()


def container(arguments: Sequence[str], *, gpus: int, image: str = "vllm/vllm-openai:v0.19.0") -> dict[str, Any]:
    return {
        "name": "engine",
        "image": image,
        "args": list(arguments),
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}},
    }


def pods(
    arguments: Sequence[str], *, gpus: int, product: str | None, image: str = "vllm/vllm-openai:v0.19.0"
) -> dict[str, Any]:
    """A template of pods on cards of one label."""
    spec: dict[str, Any] = {"containers": [container(arguments, gpus=gpus, image=image)]}
    if product is not None:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": product}
    return {"metadata": {"labels": {"app": "engine"}}, "spec": spec}


def deployment(
    arguments: Sequence[str], *, gpus: int = 1, product: str | None = "NVIDIA-H100-80GB-HBM3", **more: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "engine", "namespace": "models"},
        "spec": {"replicas": 1, "template": pods(arguments, gpus=gpus, product=product, **more)},
    }


def leader_workers(arguments: Sequence[str], *, gpus: int, product: str, size: int) -> dict[str, Any]:
    """A LeaderWorkerSet (kubernetes-sigs/lws v1) of ``size`` pods."""
    template = pods(arguments, gpus=gpus, product=product)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "engine", "namespace": "models"},
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {"size": size, "leaderTemplate": template, "workerTemplate": template},
        },
    }


def inference_service(
    arguments: Sequence[str], *, gpus: int, product: str, storage: str | None = None
) -> dict[str, Any]:
    """A KServe InferenceService (v1beta1) of the Hugging Face runtime."""
    model: dict[str, Any] = {
        "modelFormat": {"name": "huggingface"},
        "args": list(arguments),
        "resources": {"limits": {"cpu": "6", "memory": "24Gi", "nvidia.com/gpu": str(gpus)}},
    }
    if storage is not None:
        model["storageUri"] = storage
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "engine", "namespace": "models"},
        "spec": {"predictor": {"nodeSelector": {"nvidia.com/gpu.product": product}, "model": model}},
    }
