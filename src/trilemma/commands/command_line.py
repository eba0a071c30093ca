"""What an engine's command line sets: words to (flag, value) pairs, as its own parser would take them. No meaning yet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trilemma.commands import flag_words as known
from trilemma.commands.flags import Flag, FlagTable, Given
from trilemma.errors import InputError, shorten

_NUMBER = re.compile(r"-\d+(\.\d+)?[kKmMgGtT]?")
_MOST_LIST = 8192
#: Kinds of flags of one value, into which no dotted key reaches.
_KEYLESS = ("int", "ints", "count", "count_or_auto", "float", "switch", "toggle")


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagSetting:
    """One value in force: the flag, its value, and the flag as typed."""

    flag: Flag
    value: Any
    shown: str


@dataclass(slots=True)
class FlagSettings:
    """All settings by flag name (the last one wins), stray words first to last, unknown flags.

    Dotted keys gather in ``dotted``; ``replaced`` names the flags whose whole value they displaced.
    """

    by_name: dict[str, FlagSetting] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    unknown_values: list[str] = field(default_factory=list)
    config_files: list[str] = field(default_factory=list)
    dotted: dict[str, FlagSetting] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        setting = self.by_name.get(name)
        return None if setting is None else setting.value

    def put(self, given: Given, value: Any, shown: str) -> None:
        name = given.flag.name
        if given.keys:
            if given.flag.kind in _KEYLESS:
                raise InputError(f"{shorten(shown)}: --{name} takes one value and has no keys; give --{name} alone")
            self.dotted[name] = FlagSetting(flag=given.flag, value=self._merged(name, given, value, shown), shown=shown)
            return
        if given.flag.kind == "repeat" and name in self.by_name:
            value = [*self.by_name[name].value, *value]
        self.by_name[name] = FlagSetting(flag=given.flag, value=value, shown=shown)

    def _merged(self, name: str, given: Given, value: Any, shown: str) -> dict[str, Any]:
        root: dict[str, Any] = self.dotted[name].value if name in self.dotted else {}
        node = root
        if len(given.keys) > 16:
            raise InputError(f"{shorten(shown)} nests deeper than 16 keys; give the engine's own configuration")
        for key in given.keys[:-1]:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        last = given.keys[-1]
        if isinstance(value, list) and isinstance(node.get(last), list):
            value = [*node[last], *value]
        node[last] = value
        return root


def read_settings(words: Sequence[str], table: FlagTable, *, config_flag: bool = True) -> FlagSettings:
    """Settings of the words after the program's name.

    ``config_flag``: ``--config`` names a YAML file of flags that is read first, so that flags on the line win.
    Raises `InputError` for a value that the flag cannot take, a missing value, or an unreadable file.
    """
    settings = FlagSettings()
    rest = _without_config(words, settings) if config_flag else list(words)
    for path in settings.config_files:
        take(_words_of_config(path, table), settings, table)
    take(rest, settings, table)
    return settings


def _without_config(words: Sequence[str], settings: FlagSettings) -> list[str]:
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--config" or word.startswith("--config="):
            if "=" not in word and at + 1 >= len(words):
                raise InputError("--config needs a value; give the path of a YAML file")
            settings.config_files.append(word.split("=", 1)[1] if "=" in word else words[at + 1])
            at += 1 if "=" in word else 2
        else:
            rest.append(word)
            at += 1
    if len(settings.config_files) > 1:
        raise InputError("--config is given more than once; give one file")
    return rest


def _words_of_config(path: str, table: FlagTable) -> list[str]:
    """A ``--config`` file as words: true → the flag, false → its ``--no-`` form, lists → values, mappings → JSON."""
    from trilemma.commands.bounded_yaml import load_all  # reading YAML is rare, its parser slow to import
    from trilemma.commands.named_files import text_of

    documents = load_all(text_of(path), name=path)
    content = documents[0] if documents else {}
    if content is None:
        return []
    if not isinstance(content, Mapping):
        raise InputError(f"--config {shorten(path)} is not a mapping of flags; write lines such as max-model-len: 8192")
    words: list[str] = []
    for key, value in content.items():
        flag = f"--{key}"
        if value is True:
            words.append(flag)
        elif value is False:
            given = table.lookup(flag)
            if given is None or given.flag.kind in ("toggle", "switch"):
                words.append(f"{flag}=false")
        elif isinstance(value, list):
            words += [flag, *map(str, value)] if value else []
        elif isinstance(value, Mapping):
            try:
                words += [f"{flag}={json.dumps(value)}"]
            except (TypeError, ValueError) as error:
                raise InputError(f"--config {shorten(path)}: {shorten(str(key))} holds what JSON cannot") from error
        elif value is not None:
            words.append(f"{flag}={value}")
    return words


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and _NUMBER.fullmatch(word) is None


def take(words: Sequence[str], settings: FlagSettings, table: FlagTable) -> None:
    """Puts the settings of ``words``, flag by flag."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            settings.words += words[at + 1 :]
            return
        if not _is_flag(word):
            settings.words.append(word)
            at += 1
            continue
        shown, sign, attached = word.partition("=")
        following = _values_after(words, at)
        given = table.lookup(shown)
        if given is None:
            settings.unknown.append(shorten(shown))
            settings.unknown_values += following
            at += 1 + len(following)
        else:
            at += 1 + _take_one(given, shown, attached if sign else None, following, settings)


def _values_after(words: Sequence[str], at: int) -> list[str]:
    values: list[str] = []
    for word in words[at + 1 :]:
        if _is_flag(word):
            break
        values.append(word)
    return values


def _take_one(given: Given, shown: str, attached: str | None, following: list[str], settings: FlagSettings) -> int:
    """Puts one flag's value; returns how many of the following words it took."""
    flag = given.flag
    if given.keys:
        text, took = _one_value(shown, attached, following)
        settings.put(given, text.split(",") if given.append else known.dotted_value(text), shown)
        return took
    if not flag.takes_value:
        return _take_switch(given, shown, attached, following, settings)
    if flag.kind in ("list", "ints"):
        texts = following if attached is None else [attached]
        if not texts:
            raise InputError(f"{shown} needs a value")
        if len(texts) > _MOST_LIST:
            raise InputError(f"{shown} is given {len(texts):,} values; give at most {_MOST_LIST:,}")
        if flag.kind == "ints" and len(texts) == 1:
            # One word may hold the list as JSON or with commas.
            texts = [part for part in re.split(r"[\s,]+", texts[0].strip("[]")) if part][:_MOST_LIST] or texts
        settings.put(given, [known.parse_value(flag, text, shown=shown) for text in texts], shown)
        return len(following) if attached is None else 0
    if flag.kind == "optional_text" and attached is None and not following:
        settings.put(given, True, shown)
        return 0
    text, took = _one_value(shown, attached, following)
    value = known.parse_value(flag, text, shown=shown)
    settings.put(given, [value] if flag.kind == "repeat" else value, shown)
    return took


def _one_value(shown: str, attached: str | None, following: list[str]) -> tuple[str, int]:
    if attached is not None:
        return attached, 0
    if not following:
        raise InputError(f"{shorten(shown)} needs a value")
    return following[0], 1


def _take_switch(given: Given, shown: str, attached: str | None, following: list[str], settings: FlagSettings) -> int:
    """A flag without a value; older versions let ``true`` or ``false`` follow."""
    value, took = True, 0
    if attached is not None:
        value = known.boolean(attached, shown=shown)
    elif following and following[0].lower() in ("true", "false"):
        value, took = following[0].lower() == "true", 1
    settings.put(given, value != given.negated, shown)
    return took
