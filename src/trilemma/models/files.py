"""Models from paths: a folder, config.json, safetensors files and their index, GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.models import headers
from trilemma.models.architecture import Model, Tensor
from trilemma.models.documents import overlaid, read_json
from trilemma.models.read import model_from_config
from trilemma.models.stored import lay_over, model_of_tensors

_INDEX = "model.safetensors.index.json"
_MAX_ENTRIES = 10_000


def model_from_path(path: Path, *, name: str, overrides: Mapping[str, Any] | None = None) -> Model:
    """The model at ``path``: a folder, config.json, an index, a safetensors or a GGUF file.

    Where a configuration and weight files lie together, sizes are those of the files. ``overrides`` are laid over the
    configuration; with them it alone is read. Raises `InputError` naming the file and the remedy.
    """
    path = _existing(path)
    if overrides:
        return _from_config(_config_at(path), name=name, overrides=overrides)
    if path.is_dir():
        return _from_folder(path, name=name)
    if path.suffix == ".gguf":
        from trilemma.models.gguf_model import model_from_gguf

        return model_from_gguf(path, name=name)
    if path.suffix == ".safetensors":
        return _with_weights(path.parent, headers.shards_of(path), name=name)
    if path.name.endswith(".safetensors.index.json"):
        return _from_index(path, name=name)
    return _from_config(path, name=name)


def _config_at(path: Path) -> Path:
    config = path / "config.json" if path.is_dir() else path if path.suffix == ".json" else path.parent / "config.json"
    if not config.is_file() or path.suffix == ".gguf":
        raise InputError(
            f"{shorten(str(path))} has no config.json that overrides could change; leave them out or give one"
        )
    return config


def _existing(path: Path) -> Path:
    try:
        path = path.expanduser()
        if path.is_dir() or path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):
        pass
    raise InputError(
        f"{shorten(str(path))} does not exist; give a config.json, a folder that holds one, or a weight file"
    )


def _from_folder(folder: Path, *, name: str) -> Model:
    if (folder / _INDEX).is_file():
        return _from_index(folder / _INDEX, name=name)
    if (folder / "model.safetensors").is_file():
        return _with_weights(folder, [folder / "model.safetensors"], name=name)
    weights = _listed(folder, ".safetensors")
    sets = {tuple(headers.shards_of(path)) for path in weights[:200]} if weights else set()
    if len(sets) == 1:
        return _with_weights(folder, list(sets.pop()), name=name)
    if (folder / "config.json").is_file():
        return _from_config(folder / "config.json", name=name)
    if sets:
        raise InputError(f"{shorten(str(folder))} holds several safetensors models and no config.json; name one file")
    packed = [path for path in _listed(folder, ".gguf") if "mmproj" not in path.name.lower()]
    firsts = sorted({str(path.with_name(_first_of_split(path.name))) for path in packed})
    if len(firsts) == 1:
        from trilemma.models.gguf_model import model_from_gguf

        return model_from_gguf(Path(firsts[0]), name=name)
    if firsts:
        some = ", ".join(Path(path).name for path in firsts[:4])
        raise InputError(f"{shorten(str(folder))} holds {len(firsts)} GGUF models ({shorten(some)}); name one of them")
    raise InputError(
        f"{shorten(str(folder))} holds no config.json, no safetensors and no GGUF file; give a folder that does"
    )


def _first_of_split(name: str) -> str:
    head, mark, tail = name.rpartition("-of-")
    return f"{head[:-5]}00001-of-{tail}" if mark and head[-5:].isdigit() else name


def _listed(folder: Path, ending: str) -> list[Path]:
    try:
        return sorted(
            path for path in islice(folder.iterdir(), _MAX_ENTRIES) if path.suffix == ending and path.is_file()
        )
    except OSError as error:
        raise InputError(f"{shorten(str(folder))} cannot be read: {shorten(error.strerror or str(error))}") from None


def _from_config(path: Path, *, name: str, overrides: Mapping[str, Any] | None = None) -> Model:
    beside = path.parent / "hf_quant_config.json"
    extra = read_json(beside) if beside.is_file() else None
    config = overlaid(read_json(path), overrides or {})
    return model_from_config(config, name=name, source=str(path), quant_config=extra)


def _with_weights(folder: Path, paths: list[Path], *, name: str) -> Model:
    stored = headers.read_all(paths)
    source = str(paths[0]) if len(paths) == 1 else f"{folder} ({len(paths)} weight files)"
    if not (folder / "config.json").is_file():
        return model_of_tensors(stored, name=name, source=source)
    return lay_over(_from_config(folder / "config.json", name=name), stored, source=source)


def _from_index(path: Path, *, name: str) -> Model:
    """With its shards an index is exact; without them it gives the total, and with no configuration only that."""
    index = headers.read_index(path)
    shards = [path.parent / shard for shard in index.shards]
    missing = [shard for shard in shards if not shard.is_file()]
    if not missing:
        return _with_weights(path.parent, shards, name=name)
    if len(missing) < len(shards):
        raise InputError(
            f"{shorten(str(missing[0]))} is missing, while other shards are there; fetch it, or give the config.json"
        )
    if (path.parent / "config.json").is_file():
        return _beside_total(_from_config(path.parent / "config.json", name=name), index)
    if index.total_bytes is None:
        raise InputError(
            f"{shorten(str(path))} gives no total_size and its shards are absent; give the config.json beside it"
        )
    whole = Tensor(
        name="all weights", role="other", shape=(index.total_bytes,), format=catalogue.get("uint8"), part="layers"
    )
    return Model(
        name=name,
        family="unknown",
        hidden=1,
        vocab=1,
        max_positions=None,
        layers=(),
        dtype=catalogue.get("bf16"),
        tensors=(whole,),
        unknown_fields=("architecture", "attention", "cache", "context length", "parameters"),
        assumptions=(
            f"only the total of {index.total_bytes:,} bytes is known: no config.json and no shard beside the index",
        ),
        source=str(path),
    )


def _beside_total(model: Model, index: headers.Index) -> Model:
    """Say where the total of an index and the sum of a configuration part by more than 1 %."""
    counted = sum(tensor.bytes for tensor in model.tensors)
    if index.total_bytes is None or abs(counted - index.total_bytes) <= 0.01 * index.total_bytes:
        return model
    note = f"the index states {index.total_bytes:,} bytes of weights, the configuration gives {counted:,}"
    return replace(model, assumptions=(*model.assumptions, note))
