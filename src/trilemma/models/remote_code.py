"""Models that engines load only where the command trusts the code of their repository. Facts: data/models/remote_code.toml."""

from __future__ import annotations

from functools import cache

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.models import catalogue
from trilemma.models.elsewhere import is_path, stated_names
from trilemma.models.resolve import resolve_name


def needs_remote_code(word: str) -> bool:
    """Whether the model that a command names as ``word`` brings code of its own; False for models that are not known."""
    for name in stated_names(word) if is_path(word) else (word,):
        try:
            entry, _ = resolve_name(name)
        except InputError:
            continue
        return entry in _named() or _type_of(entry) in _model_types()
    return False


@cache
def _type_of(entry: str) -> str | None:
    """What a configuration of the catalogue calls its kind of model."""
    found = catalogue.config(entry).get("model_type")
    return None if found is None else str(found)


@cache
def _model_types() -> frozenset[str]:
    return frozenset(one for row in read_data("models/remote_code.toml")["family"] for one in row["model_types"])


@cache
def _named() -> frozenset[str]:
    return frozenset(one for row in read_data("models/remote_code.toml")["family"] for one in row.get("names", ()))
