"""The document that the API server sends (AdmissionReview v1), and the one that it gets back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError

#: Objects reach the API server with at most 3 MiB (k8s.io/apiserver MaxRequestBodyBytes); a review holds two and a frame.
MOST_BYTES = 7 << 20
#: Braces within braces; Go's decoder takes more, manifests need a score.
_MOST_DEPTH = 200
API_VERSION = "admission.k8s.io/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """What is asked: ``uid`` names the request, ``target`` the object (kind, namespace and name), ``manifest`` is the object."""

    uid: str
    operation: str
    target: str
    manifest: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """``message`` says why not (or, allowed, nothing); ``warnings`` are shown to whoever applied the object."""

    allowed: bool
    message: str = ""
    warnings: tuple[str, ...] = ()


def read_review(body: bytes) -> Review:
    """The request of a review. Raises `InputError` for what is none."""
    if len(body) > MOST_BYTES:
        raise InputError(f"a review of {len(body):,} bytes is longer than the {MOST_BYTES:,} that are read")
    text = body.decode("utf-8", errors="replace")
    if _depth(text) > _MOST_DEPTH:
        raise InputError(f"a review nested deeper than {_MOST_DEPTH} is not read")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is no JSON: {error}; send an AdmissionReview of {API_VERSION}") from None
    request = document.get("request") if isinstance(document, Mapping) else None
    stated = document.get("apiVersion") if isinstance(document, Mapping) else None
    if stated != API_VERSION or not isinstance(request, Mapping):
        raise InputError(f"the body is no AdmissionReview of {API_VERSION} with a request")
    uid, manifest = request.get("uid"), request.get("object")
    if not isinstance(uid, str) or not 0 < len(uid) <= 253:
        raise InputError("the request of the review has no uid")
    return Review(
        uid=uid,
        operation=str(request.get("operation", ""))[:20],
        target=_target(request),
        manifest=manifest if isinstance(manifest, Mapping) else {},
    )


def answer_document(uid: str, decision: Decision) -> dict[str, Any]:
    """The review that goes back."""
    response: dict[str, Any] = {"uid": uid, "allowed": decision.allowed}
    if not decision.allowed:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": decision.message}
    if decision.warnings:
        # the API server cuts a warning after 256 characters and all of them after 4,096
        response["warnings"] = [one if len(one) <= 256 else one[:255] + "…" for one in decision.warnings[:8]]
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _target(request: Mapping[str, Any]) -> str:
    kind = request.get("kind")
    name = kind.get("kind") if isinstance(kind, Mapping) else ""
    words = (name, request.get("namespace"), request.get("name"))
    return " ".join(str(one)[:253] for one in words if isinstance(one, str) and one)


def _depth(text: str) -> int:
    """How deep brackets nest; those inside of strings count too, which errs on the careful side."""
    deepest = depth = 0
    for char in text:
        if char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth = max(depth - 1, 0)
    return deepest
