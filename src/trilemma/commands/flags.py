"""The flags that an engine's command line knows, by version, and how values are read and written. Facts: data/engines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.versions import Version, padded, parse_version

Kind = Literal[
    "int", "count", "count_or_auto", "float", "text", "optional_text", "json", "list", "ints", "repeat", "switch", "toggle"
]  # fmt: skip

#: Human-readable integers of vLLM (``human_readable_int`` in utils/argparse_utils.py) and SGLang: small letters are
#: decimal, capitals binary.
_LETTERS = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_COUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kKmMgGtT])")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
#: Shortest and longest flags in which a slip is looked for; below, other flags are as near as the one that was meant.
_SLIP_FROM, _SLIP_TO = 5, 64
_TRUE, _FALSE = frozenset(("true", "1", "yes", "on")), frozenset(("false", "0", "no", "off"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag: ``field`` is where its value goes (see the head of the data file), ``since``/``removed`` the versions read.

    ``negative`` are spellings that turn the flag off, ``variable`` is the environment's name of it. ``absent_at`` is the
    last version read before ``since`` that does not have the flag; between the two it is unknown.
    """

    name: str
    kind: Kind
    field: str
    since: Version
    absent_at: Version | None = None
    removed: Version | None = None
    returned: Version | None = None
    renamed_to: str | None = None
    short: tuple[str, ...] = ()
    default: Any = None
    least: float | None = None
    most: float | None = None
    note: str | None = None
    uncounted: bool = False
    negative: tuple[str, ...] = ()
    variable: str | None = None

    def exists_at(self, version: Version) -> bool:
        """Whether this version may have the flag: False only where a version read shows that it has not."""
        too_old = self.absent_at is not None and version <= self.absent_at
        return not too_old and not self.gone_at(version)

    def gone_at(self, version: Version) -> bool:
        """Whether this version has dropped the flag."""
        back = self.returned is not None and version >= self.returned
        return self.removed is not None and version >= self.removed and not back

    @property
    def takes_value(self) -> bool:
        return self.kind not in ("switch", "toggle")


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A flag as found on the line: ``negated`` for ``--no-x``, ``keys`` the dotted path of ``--config.a.b``."""

    flag: Flag
    negated: bool = False
    keys: tuple[str, ...] = ()
    append: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagTable:
    """All flags by long name without dashes, and by their other spellings; ``versions`` are those read, oldest first.

    ``underscores``: underscores of long flags equal hyphens. ``opposites``: ``--no-x``, ``--enable-x`` and ``--disable-x``
    negate one another. ``dotted``: ``--x.key`` reaches into a JSON flag. ``abbreviated``: a long flag may be cut to any
    unique beginning, as argparse allows.
    """

    engine: str
    flags: Mapping[str, Flag]
    shorts: Mapping[str, Flag]
    versions: tuple[Version, ...]
    source: str
    negatives: Mapping[str, Flag] = field(default_factory=dict)
    underscores: bool = True
    opposites: bool = True
    dotted: bool = True
    abbreviated: bool = True

    def at(self, version: str | None) -> Version:
        """``version`` as numbers; without one the newest read. Raises `InputError`."""
        return padded(parse_version(version, engine=self.engine)) if version else self.versions[-1]

    def lookup(self, word: str) -> Given | None:
        """The flag that ``word`` (without ``=value``) names, as the engine's parser finds it, else None."""
        if word in self.shorts:
            return Given(flag=self.shorts[word])
        if word in self.negatives:
            return Given(flag=self.negatives[word], negated=True)
        head, dot, rest = word.partition(".") if self.dotted else (word, "", "")
        keys = tuple(part for part in rest.removesuffix("+").split(".") if part) if dot else ()
        append = rest.endswith("+")
        if not head.startswith("--"):
            flag = self.shorts.get(head)
            return Given(flag=flag, keys=keys, append=append) if flag else None
        name = head[2:].replace("_", "-") if self.underscores else head[2:]
        flag = self.flags.get(name) or self.shorts.get(f"--{name}")
        if flag is not None:
            return Given(flag=flag, keys=keys, append=append)
        if (positive := self._opposite(name)) is not None:
            return Given(flag=positive, negated=True)
        flag = self._abbreviated(name) if self.abbreviated else None
        return Given(flag=flag, keys=keys, append=append) if flag else None

    def meant_by(self, word: str) -> str | None:
        """The known flag of which ``word`` is a slip of the hand: a letter or two off, in words long enough for that."""
        name = word.lstrip("-").partition(".")[0].replace("_", "-")
        if not _SLIP_FROM <= len(name) <= _SLIP_TO:
            return None
        most = 2 if len(name) >= 2 * _SLIP_FROM else 1
        near = [(edits(name, known), known) for known in self.flags if abs(len(known) - len(name)) <= most]
        best = min(near, default=(most + 1, ""))
        return best[1] if best[0] <= most else None

    def _opposite(self, name: str) -> Flag | None:
        pairs = (("no-", ""), ("disable-", "enable-"), ("enable-", "disable-")) if self.opposites else (("no-", ""),)
        for prefix, opposite in pairs:
            flag = self.flags.get(opposite + name.removeprefix(prefix)) if name.startswith(prefix) else None
            if flag is not None and flag.kind == "toggle":
                return flag
        return None

    def _abbreviated(self, name: str) -> Flag | None:
        if len(name) < 3:
            return None
        newest = self.versions[-1]
        found = [self.flags[known] for known in self.flags if known.startswith(name)]
        living = [flag for flag in found if not flag.gone_at(newest)] or found
        return living[0] if len(living) == 1 else None


def edits(one: str, other: str) -> int:
    """Letters to add, drop, replace or swap with their neighbour to make ``one`` into ``other`` (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        older, before, row = before, row, [at]
        for to, wanted in enumerate(other, 1):
            cost = min(before[to] + 1, row[to - 1] + 1, before[to - 1] + (letter != wanted))
            if at > 1 and to > 1 and letter == other[to - 2] and one[at - 2] == wanted:
                cost = min(cost, older[to - 2] + 1)
            row.append(cost)
    return row[-1]


class Rows(Mapping[str, Flag]):
    """Flag by name, each made of its row when it is first asked for: a command sets few of hundreds."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]], versions: Sequence[Version]) -> None:
        self._rows, self._versions = rows, versions
        self._read: dict[str, Flag] = {}

    def __getitem__(self, name: str) -> Flag:
        if name not in self._read:
            self._read[name] = _flag(name, self._rows[name], self._versions)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def with_key(self, key: str) -> Iterator[Flag]:
        """The flags whose row states ``key``."""
        return (self[name] for name, row in self._rows.items() if key in row)


@cache
def read_table(file: str, engine: str, **rules: bool) -> FlagTable:
    """The table in ``data/engines/<file>``, read once; ``rules`` are the switches of `FlagTable`."""
    data = read_data(f"engines/{file}")
    versions = tuple(padded(parse_version(version, engine=engine)) for version in data["versions"])
    flags = Rows(data["flags"], versions)
    shorts = {short: flag for flag in flags.with_key("short") for short in flag.short}
    negatives = {short: flag for flag in flags.with_key("negative") for short in flag.negative}
    return FlagTable(
        engine=engine, negatives=negatives, flags=flags, shorts=shorts, versions=versions, source=data["source"], **rules
    )  # fmt: skip


def _flag(name: str, row: Mapping[str, Any], versions: Sequence[Version]) -> Flag:
    since = padded(parse_version(row["since"]))
    older = [version for version in versions if version < since]
    return Flag(
        name=name,
        kind=row["kind"],
        field=row["field"],
        since=since,
        absent_at=older[-1] if older else None,
        removed=padded(parse_version(row["removed"])) if "removed" in row else None,
        returned=padded(parse_version(row["returned"])) if "returned" in row else None,
        renamed_to=row.get("renamed_to"),
        short=tuple(row.get("short", ())),
        default=row.get("default"),
        least=row.get("least"),
        most=row.get("most"),
        note=row.get("note"),
        uncounted=bool(row.get("uncounted", False)),
        negative=tuple(row.get("negative", ())),
        variable=row.get("variable"),
    )


def parse_value(flag: Flag, text: str, *, shown: str) -> Any:
    """``text`` as the flag's kind says; ``shown`` is the flag as typed. Raises `InputError` naming flag, value and remedy."""
    match flag.kind:
        case "int" | "ints":
            return _in_range(flag, whole(text, shown=shown), shown=shown)
        case "count_or_auto" if text.strip().lower() in ("auto", "-1"):
            return "auto"
        case "count" | "count_or_auto":
            return _in_range(flag, count(text, shown=shown), shown=shown)
        case "float":
            return _in_range(flag, real(text, shown=shown), shown=shown)
        case "json":
            return json_value(text, shown=shown)
        case "switch" | "toggle":
            return boolean(text, shown=shown)
        case _:
            return text


def _in_range(flag: Flag, value: Any, *, shown: str) -> Any:
    if flag.least is not None and value < flag.least:
        raise InputError(f"{shown} {value} is below {flag.least}; give a value of at least {flag.least}")
    if flag.most is not None and value > flag.most:
        raise InputError(f"{shown} {value} is above {flag.most}; give a value of at most {flag.most}")
    return value


def whole(text: str, *, shown: str) -> int:
    if _WHOLE.fullmatch(text.strip()) is None:
        raise InputError(f"{shown} {shorten(text)!r} is not a whole number; give one such as 8")
    return int(text)


def count(text: str, *, shown: str) -> int:
    """A whole number with letters: ``1k`` = 1000, ``1K`` = 1024, ``25.6k`` = 25600, no decimals before a capital."""
    stripped = text.strip()
    match = _COUNT.fullmatch(stripped)
    if match is None:
        if _WHOLE.fullmatch(stripped) is None:
            raise InputError(f"{shown} {shorten(text)!r} is not a whole number; give one such as 32768, 32K or 32k")
        return int(stripped)
    number, letter = match.groups()
    if letter.isupper() and "." in number:
        raise InputError(
            f"{shown} {shorten(text)!r}: the engine takes no decimals before the binary letter {letter}; "
            f"give {number}{letter.lower()} or a whole number"
        )
    return int(float(number) * _LETTERS[letter]) if "." in number else int(number) * _LETTERS[letter]


def real(text: str, *, shown: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{shown} {shorten(text)!r} is not a number; give one such as 0.9")
    return value


def boolean(text: str, *, shown: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise InputError(
            f"{shown} {shorten(text)!r} is neither true nor false; give the flag alone or --no-{shown[2:]}"
        )
    return word in _TRUE


def json_value(text: str, *, shown: str) -> Any:
    """JSON, with bare letters (``80m``) and the older ``key=value,…`` form of ``--limit-mm-per-prompt`` accepted."""
    if len(text) > 2**18:
        raise InputError(f"{shown} is longer than 262,144 characters; give the engine's own short JSON")
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        pass
    pairs = [part.partition("=") for part in text.split(",")]
    if all(sign and key.strip().isidentifier() and _WHOLE.fullmatch(value.strip()) for key, sign, value in pairs):
        return {key.strip(): int(value) for key, _, value in pairs}
    return text


def strict_json(text: str) -> Any:
    """JSON without NaN and infinities, bare numbers with letters expanded. Raises `ValueError` or `RecursionError`."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"\b\d{1,18}(?:\.\d{1,9})?[kKmMgGtT]\b", lambda match: str(count(match.group(), shown="JSON")), parts[index]
        )
    try:
        return json.loads("".join(parts), parse_constant=refuse)
    except InputError as error:
        raise ValueError(str(error)) from error


def dotted_value(text: str) -> Any:
    """The value of ``--config.key value``: JSON when it is JSON, a number with a letter, else the text itself."""
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text


def words_of(flag: Flag, value: Any) -> list[str]:
    """The words that set ``flag`` to ``value`` on a command line."""
    name = f"--{flag.name}"
    if flag.kind == "toggle":
        return [name if value else f"--no-{flag.name}"]
    if flag.kind == "switch":
        return [name] if value else []
    if flag.kind == "optional_text" and value is True:
        return [name]
    if flag.kind == "repeat":
        return [word for one in value for word in (name, value_text(one))]
    if isinstance(value, (list, tuple)) and flag.kind in ("list", "ints"):
        return [name, *(value_text(one) for one in value)] if value else []
    shown = value_text(value)
    return [f"{name}={shown}"] if shown.startswith("-") else [name, shown]


def value_text(value: Any) -> str:
    """A value as one word: mappings and lists as compact JSON, numbers so that they read back the same."""
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, separators=(",", ":"), sort_keys=False)
    return str(value)
