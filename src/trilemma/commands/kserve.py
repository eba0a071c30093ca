"""KServe's InferenceService: a model named beside the flags of the runtime that serves it.

Source: kserve docs/model-serving/generative-inference (the Hugging Face runtime serves with vLLM, and takes its flags beside its
own) and docs/model-serving/storage/providers/hf (``hf://ORG/MODEL[:HASH]`` lands in /mnt/models).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Flags of the runtime itself, each with a value.
_OWN = ("--model_name", "--model_id", "--model_dir", "--model_revision", "--backend", "--task", "--http_port", "--grpc_port",
        "--model-name", "--model-id", "--model-dir", "--model-revision")  # fmt: skip
_HUB = "hf://"


def as_container(node: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """``predictor.model`` of the Hugging Face runtime as the container that it becomes; another runtime's as it is."""
    named = node.get("modelFormat")
    arguments = node.get("args") or []
    if not (isinstance(named, Mapping) and named.get("name") == "huggingface" and isinstance(arguments, list)):
        return node
    given, rest = _taken_apart([str(word) for word in arguments if not isinstance(word, Mapping | list)])
    stored = str(node.get("storageUri") or "")
    model = given.get("--model-id") or (stored.removeprefix(_HUB).partition(":")[0] if stored.startswith(_HUB) else "")
    model = model or given.get("--model-dir", "")
    if not model or given.get("--backend", "auto") not in ("auto", "vllm"):
        return node
    return {**node, "command": ["vllm", "serve", model], "args": rest, "name": node.get("name", "model")}


def _taken_apart(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """(the runtime's own flags, the engine's words)."""
    own: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        name, sign, value = words[at].partition("=")
        at += 1
        if name not in _OWN:
            rest.append(words[at - 1])
            continue
        if not sign and at < len(words):
            value, at = words[at], at + 1
        own[name.replace("_", "-")] = value
    return own, rest
