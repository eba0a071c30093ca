"""Formats of what a plan says beside weights: the cache and the states of training."""

from __future__ import annotations

from collections.abc import Mapping

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.precision.patterns import OWN

#: Lifetimes beside weights, activations and KV cache, with what they are when a plan does not say.
LIFETIMES = {
    "accumulation": "fp32", "communication": OWN, "gradients": "", "master_weights": "", "moments": "",
}  # fmt: skip


def checked_cache(name: str) -> str:
    if name != "auto":
        catalogue.get(name)
    return name


def checked_lifetimes(stated: Mapping[str, str]) -> dict[str, str]:
    for name, value in stated.items():
        if name not in LIFETIMES:
            raise InputError(f"lifetime {shorten(name)!r} is not known; known are {', '.join(LIFETIMES)}")
        if value not in ("", OWN):
            catalogue.get(value)
    return {**LIFETIMES, **stated}
