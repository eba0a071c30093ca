"""The flags that an engine's command line knows, by version. Facts: data/engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from trilemma.commands.flag_values import FlagValues, read_values
from trilemma.data.files import read_data
from trilemma.versions import Version, padded, parse_version

Kind = Literal[
    "int", "count", "count_or_auto", "float", "text", "optional_text", "json", "list", "ints", "repeat", "switch", "toggle"
]  # fmt: skip

#: Shortest and longest flags in which a slip is looked for; below, other flags are as near as the one that was meant.
_SLIP_FROM, _SLIP_TO = 5, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag: ``field`` is where its value goes (see the head of the data file), ``since``/``removed`` the versions read.

    ``negative`` are spellings that turn the flag off, ``variable`` is the environment's name of it. ``absent_at`` is the
    last version read before ``since`` that does not have the flag; between the two it is unknown. ``renamed_to`` says the
    same thing today: another flag, ``flag.key`` of one that takes JSON, or ``flag=value`` of a switch; ``instead`` is a flag
    that does its work in another way.
    """

    name: str
    kind: Kind
    field: str
    since: Version
    absent_at: Version | None = None
    removed: Version | None = None
    returned: Version | None = None
    renamed_to: str | None = None
    instead: str | None = None
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
    values: FlagValues = field(default_factory=FlagValues)
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


class FlagRows(Mapping[str, Flag]):
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
    flags = FlagRows(data["flags"], versions)
    shorts = {short: flag for flag in flags.with_key("short") for short in flag.short}
    negatives = {short: flag for flag in flags.with_key("negative") for short in flag.negative}
    values = read_values(file.replace("_flags", "_values"), engine)
    return FlagTable(
        engine=engine, negatives=negatives, flags=flags, shorts=shorts, versions=versions, source=data["source"],
        values=values, **rules,
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
        instead=row.get("instead"),
        short=tuple(row.get("short", ())),
        default=row.get("default"),
        least=row.get("least"),
        most=row.get("most"),
        note=row.get("note"),
        uncounted=bool(row.get("uncounted", False)),
        negative=tuple(row.get("negative", ())),
        variable=row.get("variable"),
    )
