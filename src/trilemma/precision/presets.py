"""Precision plans by name, and from plan files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, UnknownName, shorten
from trilemma.models.architecture import Model
from trilemma.outside_files import read_text
from trilemma.precision.patterns import OWN, read_rules
from trilemma.precision.plan import PrecisionPlan, plan_as_published, plan_from_rules, plan_from_scheme

_MOST_BYTES = 16 * 2**20
_KEYS = {"name", "about", "source", "kv_cache", "lifetimes", "rules"}


def preset_names() -> tuple[str, ...]:
    """Names of the presets, in the order of their data file."""
    return tuple(_document()["presets"])


def ladder(engine: str = "default") -> tuple[str, ...]:
    """Presets that are tried on ``engine`` when nothing is asked for, formats of the widest first."""
    ladders = _document()["ladders"]
    return tuple(ladders.get(engine, ladders["default"]))


def concessions(engine: str = "default") -> tuple[tuple[str, bool], ...]:
    """What is given up in turn when no plan fits: (format of the cache or "", whether CUDA graphs go)."""
    rows = _document()["concessions"]
    return tuple((row.get("cache", ""), row.get("eager", False)) for row in rows.get(engine, rows["default"]))


def preset_plan(model: Model, name: str) -> PrecisionPlan:
    """The preset called ``name`` laid over ``model``. Raises `UnknownName` with near names."""
    key, row = _find(name)
    if key == "as-published":
        return plan_as_published(model)
    about, source = row["about"], row["source"]
    if "scheme" in row:
        return plan_from_scheme(
            model, row["scheme"], name=key, activations=row.get("activations", OWN), about=about, source=source
        )
    return plan_from_rules(model, read_rules(row["rules"], what=f"preset {key}"), name=key, about=about, source=source)


def file_plan(model: Model, path: str | Path) -> PrecisionPlan:
    """The plan in a TOML or JSON file laid over ``model``: ``rules``, and if wanted ``name``, ``kv_cache``, ``lifetimes``.

    A JSON document that ``precision plan`` or ``precision allocate`` printed is read too. Raises `InputError`.
    """
    document = _plan_document(Path(path))
    what = shorten(str(path))
    unknown = sorted(str(key) for key in set(document) - _KEYS)
    if unknown:
        raise InputError(
            f"{what} has the unknown key {shorten(repr(unknown[0]))}; known are {', '.join(sorted(_KEYS))}"
        )
    lifetimes = document.get("lifetimes", {})
    texts = {key: document.get(key, default) for key, default in (("name", Path(path).stem), ("kv_cache", "auto"))}
    for key, value in texts.items():
        if not isinstance(value, str) or not value:
            raise InputError(f"{what}: {key} is {shorten(repr(value))}; it must be a name")
    if not isinstance(lifetimes, Mapping) or not all(isinstance(value, str) for value in lifetimes.values()):
        raise InputError(f"{what}: lifetimes must be a table of formats")
    return plan_from_rules(
        model,
        read_rules(document.get("rules"), what=what),
        name=shorten(texts["name"]),
        kv_cache=texts["kv_cache"],
        lifetimes=lifetimes,
        about=shorten(str(document.get("about", ""))),
        source=what,
    )


def _plan_document(path: Path) -> Mapping[str, Any]:
    what = shorten(str(path))
    text = read_text(path, most_bytes=_MOST_BYTES, give="give a plan file or --preset")
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is neither TOML nor JSON ({shorten(str(error))}); correct it") from None
    if not isinstance(document, Mapping):
        raise InputError(f"{what} holds no plan; give a table with rules")
    inner = document.get("plan")
    return inner if isinstance(inner, Mapping) else document


def _find(name: str) -> tuple[str, Mapping[str, Any]]:
    asked = name.strip().lower()
    for key, row in _document()["presets"].items():
        if asked in (key, key.replace("-", "_"), *row.get("names", ())):
            return key, row
    raise UnknownName("precision preset", name, preset_names(), hint=f"such as {', '.join(preset_names()[:6])}")


@cache
def _document() -> dict[str, Any]:
    return read_data("precision/presets.toml")
