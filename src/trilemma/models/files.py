"""Models from paths: a folder, config.json, safetensors files and their index, GGUF files."""

from __future__ import annotations

from pathlib import Path

from trilemma.errors import InputError, shorten
from trilemma.models.architecture import Model
from trilemma.models.documents import read_json
from trilemma.models.read import model_from_config


def model_from_path(path: Path, *, name: str) -> Model:
    """The model at ``path``. Raises `InputError` naming the file and the remedy."""
    path = path.expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):
        is_folder = is_file = False
    if not is_folder and not is_file:
        raise InputError(
            f"{shorten(str(path))} does not exist; give a config.json, a folder that holds one, or a weight file"
        )
    if is_folder:
        return _from_config(path / "config.json", name=name)
    return _from_config(path, name=name)


def _from_config(path: Path, *, name: str) -> Model:
    beside = path.parent / "hf_quant_config.json"
    extra = read_json(beside) if beside.is_file() else None
    return model_from_config(read_json(path), name=name, source=str(path), quant_config=extra)
