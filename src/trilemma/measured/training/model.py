"""The model that a row of a training table names, or that its columns build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trilemma.errors import InputError
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import Model


def model_of_row(row: Row, models_dir: str | None, assumed: list[str]) -> Model:
    name = row.text("model")
    if not name:
        raise UnusableRow("names no model")
    columns = tuple((key, row.whole(key, low=1, high=2**24)) for key in _ARCHITECTURE)
    dense = re.search(r"dense_layers (\d{1,3})", row.text("notes"))
    stated = tuple((key, value) for key, value in columns if value is not None)
    found = _built(name[:300], models_dir, stated, int(dense.group(1)) if dense else None)
    if isinstance(found, str):
        raise UnusableRow(found)
    model, changes = found
    assumed += [f"{key}: the table's {value} instead of the catalogue's" for key, value in changes]
    return model


#: Architecture columns and the keys of a configuration that say the same.
_ARCHITECTURE: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "vocab": ("vocab_size",),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token"),
}


@lru_cache(maxsize=1024)
def _built(
    name: str, models_dir: str | None, columns: tuple[tuple[str, int], ...], dense_layers: int | None
) -> tuple[Model, tuple[tuple[str, int], ...]] | str:
    """The model as the row runs it with the columns that changed it, or why there is none."""
    from trilemma.models import catalogue
    from trilemma.models.read import model_from_config
    from trilemma.models.resolve import load_model, resolve_name

    wanted = dict(columns)
    plain = re.sub(r"\bcut to \d+ layers\b", "", name).strip()
    try:
        if models_dir is not None:
            return load_model(name, models_dir=models_dir), ()
        config = {
            key: value for key, value in catalogue.config(resolve_name(plain)[0]).items() if not key.startswith("_")
        }
    except InputError as error:
        if {"layers", "hidden", "ffn", "heads", "vocab"} <= set(wanted):
            return model_from_config(_from_columns(wanted), name=name, source="architecture columns"), columns
        return error.flags
    text = config.get("text_config")
    part = dict(text) if isinstance(text, dict) else config
    changes = _overlaid(part, wanted, dense_layers)
    try:
        model = model_from_config(
            {**config, "text_config": part} if isinstance(text, dict) else part, name=plain, source=f"catalogue {plain}"
        )
    except InputError as error:
        return error.flags
    return model, tuple(changes)


def _overlaid(part: dict[str, Any], wanted: Mapping[str, int], dense_layers: int | None) -> list[tuple[str, int]]:
    """Write what columns state over a configuration; the keys changed."""
    changes = []
    for column, value in wanted.items():
        names = _ARCHITECTURE[column]
        if column == "ffn" and "moe_intermediate_size" in part:
            names = ("moe_intermediate_size",)
        key = next((name for name in names if isinstance(part.get(name), int)), None)
        if key is not None and part[key] != value:
            part[key] = value
            changes.append((column, value))
    if dense_layers is not None and isinstance(part.get("first_k_dense_replace"), int):
        part["first_k_dense_replace"] = dense_layers
    layers = next((part[key] for key in _ARCHITECTURE["layers"] if key in part), None)
    for key, value in part.items():
        if isinstance(value, list) and layers is not None and key in ("layer_types", "mlp_layer_types"):
            part[key] = value[:layers]
    return changes


def _from_columns(columns: Mapping[str, int]) -> dict[str, Any]:
    """A Llama or Mixtral of the stated sizes: what most models of an unknown name are."""
    config: dict[str, Any] = {
        "model_type": "mixtral" if "experts" in columns else "llama",
        "num_hidden_layers": columns["layers"],
        "hidden_size": columns["hidden"],
        "intermediate_size": columns["ffn"],
        "num_attention_heads": columns["heads"],
        "num_key_value_heads": columns.get("kv_heads", columns["heads"]),
        "vocab_size": columns["vocab"],
        "torch_dtype": "bfloat16",
    }
    if "experts" in columns:
        config |= {"num_local_experts": columns["experts"], "num_experts_per_tok": columns.get("top_k", 2)}
    return config
