"""Recipes and optimizers by name, read from one data file."""

from __future__ import annotations

from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import UnknownName
from trilemma.plans.training import Optimizer, TrainingRecipe


def recipe(name: str) -> TrainingRecipe:
    """The recipe called ``name``: bf16, bf16-bf16-grads, amp, fsdp, pure-bf16, fp8-… Raises `UnknownName`."""
    found = _document()["recipe"]
    name = _document()["alias"].get(name, name)
    if name not in found:
        raise UnknownName("training recipe", name, (*found, *_document()["alias"]))
    return TrainingRecipe(name=name, **_fields(found[name]))


def recipe_names() -> frozenset[str]:
    """The names that `recipe` knows."""
    return frozenset(_document()["recipe"])


def optimizer(name: str) -> Optimizer:
    """The optimizer called ``name``: adamw, adamw-8bit, adafactor, muon, sgd, … Raises `UnknownName`."""
    found = _document()["optimizer"]
    if name not in found:
        raise UnknownName("optimizer", name, found)
    return Optimizer(name=name, **_fields(found[name]))


def frozen_as(stored: str, method: str = "") -> str:
    """The format in which frozen weights lie beside adapters where a checkpoint holds them as ``stored`` by ``method`` (its
    ``quant_method``): narrow floating formats are expanded when loaded, those of some methods when they first multiply."""
    frozen = _document()["frozen"]
    return "bf16" if stored in frozen["expanded"] or method in frozen["expanding_methods"] else stored


@cache
def _document() -> dict[str, Any]:
    return read_data("training_recipes.toml")


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples, an empty text as "none kept"."""
    return {key: tuple(one) if isinstance(one, list) else None if one == "" else one for key, one in row.items()}
