"""From a name or a path to a `Model`: folders given by the user, files, the hub cache, the catalogue, the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, UnknownName, shorten
from trilemma.models import catalogue, hub
from trilemma.models.architecture import Model, Quantization
from trilemma.models.documents import overlaid
from trilemma.models.files import model_from_path
from trilemma.models.named_weights import under_scheme, under_unstated
from trilemma.models.naming import (
    MAX_NAME,
    ModelSpelling,
    layers_left,
    spell,
    squeeze,
    without_dates,
    without_url,
)
from trilemma.models.publishers import is_of_another, with_cache
from trilemma.models.quantized import read_quantization, requantize, restate
from trilemma.models.quantized.schemes import Scheme
from trilemma.models.read import model_from_config

_FILE_ENDINGS = (".json", ".safetensors", ".gguf")
_PUBLISHERS = ("nvidia", "meta", "google", "microsoft", "openai", "ibm", "mistralai", "deepseek")
#: A size at the end of a name whose architecture has one size only: ``DeepSeek R1 671b``, ``Nemotron 3 Nano 30B``.
_SIZE = re.compile(r"\d+(?:\.\d+)?[bt]")
#: Active parameters at the end of the name of a mixture, which tables leave out: ``Qwen3-235B`` is Qwen3-235B-A22B.
_ACTIVE = re.compile(r"a\d+(?:\.\d+)?b")


def load_model(
    name_or_path: str, *, models_dir: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Model:
    """The model that ``name_or_path`` means.

    The address of a model's page on a hub is its id.
    In this order: a folder ``<org>--<name>`` of ``models_dir`` (or of ``TRILEMMA_MODELS``), a path (config.json, a folder
    that holds one, ``*.safetensors``, ``model.safetensors.index.json``, ``*.gguf``), the local hub cache, the catalogue in
    any usual spelling, the hub where it may be reached. A quantisation that only the name states (``…-FP8-dynamic``) is
    laid over the architecture and listed as assumed. ``overrides`` replace values of the configuration. Raises `InputError`,
    or `UnknownName` with near names.
    """
    name = without_url(name_or_path.strip())
    if not name or len(name) > 4096 or "\0" in name:
        raise InputError(f"model name {shorten(name_or_path)!r} is empty or too long; give a name or a path")
    folder = _models_folder(name, models_dir)
    if folder is not None:
        return _stated_by_name(model_from_path(folder, name=name, overrides=overrides), name)
    path = Path(name)
    if _looks_like_path(name, path):
        return model_from_path(path, name=_name_of_path(path), overrides=overrides)
    cached = hub.cached_snapshot(name)
    if cached is not None:
        return _stated_by_name(model_from_path(cached, name=name, overrides=overrides), name)
    found = _from_catalogue(name, overrides) if overrides else _as_catalogued(name)
    if found is not None:
        return found
    fetched = hub.fetch(name) if "/" in name else None
    if fetched is not None:
        return _stated_by_name(model_from_path(fetched, name=name, overrides=overrides), name)
    raise UnknownName("model", name, _offers(), hint=hub.why_not_fetched() if "/" in name else "see trilemma models")


def resolve_name(name: str) -> tuple[str, Scheme | None]:
    """The catalogue entry that a spelling means and the quantisation scheme it states, without reading the entry.

    Raises `UnknownName`, or `InputError` with the candidates where several entries fit.
    """
    found = _find(name)
    if found is None:
        raise UnknownName("model", name, _offers(), hint="see trilemma models")
    return found[0], found[1].scheme if found[1] is not None else None


def _models_folder(name: str, models_dir: str | None) -> Path | None:
    root = models_dir or os.environ.get("TRILEMMA_MODELS")
    if not root or len(name) > MAX_NAME or name.startswith((".", "/")) or ".." in name.split("/"):
        return None
    base = Path(root)
    if models_dir and not base.is_dir():
        raise InputError(f"--models {shorten(models_dir)} is no folder; give one that holds <org>--<name>/config.json")
    wanted = name.replace("/", "--")
    exact = base / wanted
    try:
        if (exact / "config.json").is_file():
            return exact
    except OSError:  # longer than a file's name may be
        return None
    for folder in _folders(base):
        if folder.lower() == wanted.lower() and (base / folder / "config.json").is_file():
            return base / folder
    return None


def _folders(base: Path) -> list[str]:
    try:
        with os.scandir(base) as found:
            return sorted(entry.name for entry, _ in zip(found, range(100_000), strict=False))
    except OSError:
        return []


def _looks_like_path(name: str, path: Path) -> bool:
    if name.endswith(_FILE_ENDINGS) or name.startswith(("/", "./", "../", "~")) or (os.sep != "/" and os.sep in name):
        return True
    try:
        return path.is_file() or (path / "config.json").is_file()
    except OSError:
        return False


def _name_of_path(path: Path) -> str:
    stem = path.parent if path.name in ("config.json", "model.safetensors.index.json") else path
    return Path(os.path.realpath(stem)).name.replace("--", "/", 1) or str(path)


@lru_cache(maxsize=16)
def _as_catalogued(name: str) -> Model | None:
    """Kept, since a table of plans or cards asks for the same few again and again."""
    return _from_catalogue(name, {})


def _from_catalogue(name: str, overrides: Mapping[str, Any]) -> Model | None:
    found = _find(name)
    if found is None:
        return None
    entry_name, spelling, note = found
    config = catalogue.config(entry_name)
    source = f"catalogue {entry_name}: {config.pop('_source', '')}"
    as_of, warning = config.pop("_as_of", ""), config.pop("_warning", "")
    left = layers_left(name)
    if left is not None:
        _cut(config, left)
        note = f"{shorten(name)}: the first {left} layers of {entry_name}"
    model = model_from_config(
        overlaid({key: value for key, value in config.items() if not key.startswith("_")}, overrides),
        name=name if "/" in name else entry_name,
        source=f"{source}{f' ({as_of})' if as_of else ''}",
    )
    if is_of_another(name, catalogue.entries()[entry_name].ids, makers=catalogue.original(entry_name).ids):
        model = _as_published(model, name)
    elif spelling is not None:
        model = _stated_by_name(model, name)
    notes = tuple(text for text in (note, warning) if text)
    return replace(model, assumptions=model.assumptions + notes) if notes else model


def _as_published(model: Model, name: str) -> Model:
    """``model``, which another publisher quantised, stored by the scheme that ``name`` states as its own publisher does."""
    scheme = spell(name).scheme
    if scheme is None:
        return model
    return with_cache(requantize(model, scheme.name), name)


def _cut(config: dict[str, Any], layers: int) -> None:
    """Leave the first ``layers`` layers of a configuration."""
    text = config.get("text_config")
    part = text if isinstance(text, dict) else config
    key = next((key for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if key in part), None)
    if key is None or not 0 < layers <= part[key]:
        raise InputError(f"a model cut to {layers} layers must keep 1 to {part.get(key, 0) if key else 0} of them")
    part[key] = layers


def _stated_by_name(model: Model, name: str) -> Model:
    """Lay the quantisation that a name states over a configuration that states none, or another."""
    spelling = spell(name)
    if model.quantization is not None and model.quantization.weight_format is None and _is_known_plain(name):
        note = f"the configuration names {model.quantization.method} without a format; {shorten(name)} is published unquantised"
        plain = requantize(model, model.dtype.name)
        return replace(plain, assumptions=(*plain.assumptions, note))
    known = _known_quantization(name, model) if model.quantization is None else None
    if known is not None:
        note = f"the configuration states no quantisation; that of {shorten(name)} in the catalogue was used"
        return replace(restate(model, known), assumptions=(*model.assumptions, note))
    if spelling.scheme is not None:
        return under_scheme(model, spelling.scheme, name)
    if spelling.unstated is not None and model.quantization is None:
        return under_unstated(model, spelling.unstated, name)
    return model


def _is_known_plain(name: str) -> bool:
    """Whether the catalogue has exactly this hub id as a checkpoint without quantisation."""
    entry = _ids().get(name.lower()) if "/" in name else None
    return entry is not None and "quantization_config" not in catalogue.config(entry)


def _known_quantization(name: str, model: Model) -> Quantization | None:
    """What the catalogue knows of the quantisation of exactly this hub id."""
    entry = _ids().get(name.lower())
    stated = catalogue.config(entry) if entry is not None else {}
    return read_quantization(stated, dtype=model.dtype) if "quantization_config" in stated else None


def _find(name: str) -> tuple[str, ModelSpelling | None, str] | None:
    """Entry, the spelling where words of it say more than the entry does, and what was assumed; None where nothing fits."""
    if len(name) > MAX_NAME:
        raise InputError(f"model name {shorten(name)!r} is too long; give a name of at most {MAX_NAME} characters")
    exact = _ids().get(name.lower())
    if exact is not None:
        return exact, None, ""
    spelling = spell(name)
    for words, is_literal in _readings(spelling):
        candidates = _keys().get(squeeze(words), ())
        if len(candidates) == 1:
            return candidates[0], None if is_literal else spelling, _note(name, candidates[0])
        if candidates:
            raise InputError(f"model name {shorten(name)!r} fits {', '.join(candidates[:6])}; name one of them")
    return None


def _readings(spelling: ModelSpelling) -> Iterator[tuple[Sequence[str], bool]]:
    """Ever looser readings of a name, the most literal first, with whether it is literal."""
    yield spelling.words, True
    for words in (spelling.bare, without_dates(spelling.bare), spelling.before):
        yield words, False
        if len(words) > 2 and words[0] in _PUBLISHERS:
            yield words[1:], False
        if len(words) > 2 and _SIZE.fullmatch(words[-1]):
            yield words[:-1], False


def _note(name: str, entry: str) -> str:
    known = catalogue.entries()[entry]
    if "/" in name and name.lower() not in {one.lower() for one in known.ids}:
        return f"{shorten(name)} is taken to have the architecture of {known.ids[0] if known.ids else entry}"
    return ""


@cache
def _ids() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for entry in catalogue.entries().values():
        found[entry.name.lower()] = entry.name
        for one in entry.ids:
            found[one.lower()] = entry.name
    return found


@cache
def _keys() -> Mapping[str, tuple[str, ...]]:
    """Squeezed spelling → entries: full spellings of names, ids and aliases first, looser ones where those leave room."""
    full: dict[str, list[str]] = {}
    loose: dict[str, list[str]] = {}
    for entry in catalogue.entries().values():
        for index, text in enumerate((entry.name, *entry.aliases, *entry.ids)):
            spelling = spell(text)
            _add(full, squeeze(spelling.words), entry.name)
            if index == 0 or spelling.scheme is None:
                _add(loose, squeeze(spelling.bare), entry.name)
                _add(loose, squeeze(without_dates(spelling.bare)), entry.name)
            if index == 0 and spelling.scheme is None and _ACTIVE.fullmatch(spelling.bare[-1]):
                _add(loose, squeeze(spelling.bare[:-1]), entry.name)
    return {key: tuple(found) for key, found in (loose | full).items()}


def _add(table: dict[str, list[str]], key: str, name: str) -> None:
    if name not in table.setdefault(key, []):
        table[key].append(name)


def _offers() -> list[str]:
    return [
        text for entry in catalogue.entries().values() for text in (entry.name, *(one.lower() for one in entry.ids))
    ]
