"""What a trainer's own files and flags set, asked for by what it means: one shape for every trainer that is read.

A trainer is a module (what is its own) and a data file ``engines/{name}.toml``: ``keys`` that it knows, ``switches`` that may
stand alone, ``lists``, a table ``meaning`` (what a plan rests on ← its keys, the first given counts) and ``defaults`` by
meaning, all with their source. ``like`` takes the rest from another trainer's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trilemma.commands.bounded_yaml import load_all
from trilemma.commands.option_words import read_options, real, truth, whole
from trilemma.engines.training import framework_facts, unknown_warning
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.outside_files import read_text

_ENDINGS = (".yaml", ".yml", ".json")
_NOTHING = ("", "none", "null", "~")
_MOST_DEPTH = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """The data file of a trainer, whole."""

    name: str
    shown: str
    keys: frozenset[str]
    switches: frozenset[str]
    lists: frozenset[str]
    prefixes: tuple[str, ...]
    meaning: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Any]


@cache
def trainer(name: str) -> Trainer:
    """The trainer whose file is ``engines/{name}.toml``."""
    facts = framework_facts(name)
    parent = trainer(facts["like"]) if facts.get("like") else None
    meaning = {key: tuple(value) for key, value in facts.get("meaning", {}).items()}
    listed = {one for keys in meaning.values() for one in keys}
    return Trainer(
        name=name,
        shown=str(facts.get("shown", name)),
        keys=frozenset((*facts.get("keys", ()), *facts.get("flags", ()), *facts.get("older", ()), *listed))
        | (parent.keys if parent else frozenset()),
        switches=frozenset(facts.get("switches", ())) | (parent.switches if parent else frozenset()),
        lists=frozenset(facts.get("lists", ())) | (parent.lists if parent else frozenset()),
        prefixes=tuple(facts.get("prefixes", ())),
        meaning={**(parent.meaning if parent else {}), **meaning},
        defaults={**(parent.defaults if parent else {}), **facts.get("defaults", {})},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """Keys as given, dotted where they nest; ``dashes`` is what stands before a key in messages."""

    trainer: Trainer
    given: Mapping[str, Any]
    dashes: str = ""

    def over(self, other: Mapping[str, Any]) -> Values:
        """These with ``other`` laid over them."""
        return Values(trainer=self.trainer, given={**self.given, **other}, dashes=self.dashes)

    def found(self, meaning: str) -> tuple[str, Any]:
        """The key that states ``meaning`` and its value; the default where none does; ("", None) without one."""
        for key in self.trainer.meaning.get(meaning, ()):
            value = self.given.get(key)
            if value is not None and not (isinstance(value, str) and value.strip().lower() in _NOTHING):
                return f"{self.dashes}{key}", value
        return meaning, self.trainer.defaults.get(meaning)

    def has(self, meaning: str) -> bool:
        """Whether something states ``meaning``, a default apart."""
        return any(self.given.get(key) is not None for key in self.trainer.meaning.get(meaning, ()))

    def text(self, meaning: str) -> str | None:
        value = self.found(meaning)[1]
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        return None if value is None else str(value)

    def on(self, meaning: str) -> bool:
        key, value = self.found(meaning)
        return value is not None and truth(value, key)

    def whole(self, meaning: str, *, low: int = 1) -> int | None:
        key, value = self.found(meaning)
        return None if value is None else whole(value, key, low=low)

    def real(self, meaning: str) -> float | None:
        key, value = self.found(meaning)
        return None if value is None else real(value, key)

    def words(self, meaning: str) -> tuple[str, ...]:
        """A list, or one text with commas or spaces between."""
        value = self.found(meaning)[1]
        if value is None:
            return ()
        parts = value if isinstance(value, (list, tuple)) else [value]
        return tuple(word for one in parts for word in str(one).strip("[]").replace(",", " ").replace("'", "").split())

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that are in no list of the trainer, as they were written."""
        known = self.trainer
        return tuple(
            f"{self.dashes}{key}" for key in self.given if key not in known.keys and not key.startswith(known.prefixes)
        )

    def warnings(self) -> list[PlanWarning]:
        """What names the unknown keys with the nearest known ones."""
        names = (f"{self.dashes}{key}" for key in sorted(self.trainer.keys))
        return list(unknown_warning(self.unknown, names, where=self.trainer.shown))


def from_flags(of: Trainer, words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``--key value`` of a command: values by key, and the words that are no option. ``--no_key`` denies a switch."""
    taken = of.keys | {f"no_{name}" for name in of.switches}
    switches = of.switches | {f"no_{name}" for name in of.switches}
    options = read_options(words, switches=switches, values=taken - switches - of.lists, lists=of.lists, fold=True)
    found: dict[str, Any] = {}
    for name, given in options.words.items():
        positive = name.removeprefix("no_")
        if name.startswith("no_") and positive in of.switches and name not in of.keys:
            found[positive] = False
        else:
            found[name] = list(given) if name in of.lists and given else given[0] if given else True
    return found, options.positional


def from_overrides(words: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words (Hydra, OmegaConf): ``a.b=1``, ``+a.b=1``, ``~a`` leaves a key out; other words are passed over."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        name = name.lstrip("+~").removeprefix("--")
        if sign and name and all(part.replace("-", "_").isidentifier() for part in name.split(".")):
            found[name.replace("-", "_")] = _value(value)
    return found


def from_file(path: str, *, nested: bool = False) -> dict[str, Any]:
    """The mapping in a YAML or JSON file; ``nested`` joins the keys of sections with dots. Raises `InputError`."""
    documents = load_all(read_text(Path(path)), name=path)
    document = documents[0] if documents else None
    if not isinstance(document, Mapping):
        raise InputError(f"{shorten(path)} holds no mapping; give the trainer's own configuration")
    return dict(flat(document)) if nested else {str(key): value for key, value in document.items()}


def flat(document: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Leaves of nested mappings by dotted key. Raises `InputError` where they nest deeper than any real file."""
    if depth > _MOST_DEPTH:
        raise InputError(f"the configuration nests deeper than {_MOST_DEPTH} sections; give the trainer's own")
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value


def is_configuration(word: str) -> bool:
    """Whether a word names a configuration file."""
    return word.lower().endswith(_ENDINGS) and not word.startswith("-") and len(word) < 4096


def _value(text: str) -> Any:
    """A value of an override: a list in brackets, a quoted text, or the text itself."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [part.strip().strip("'\"") for part in text[1:-1].split(",") if part.strip()]
    return text.strip("'\"")
