"""Cells of tables from outside as numbers, times and words. Errors name file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten

_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_TRES_GPU = re.compile(r"gres/gpu(?::([\w.-]+))?=(\d+)")
_TRES_CPU = re.compile(r"(?:^|,)cpu=(\d{1,9})(?=,|$)")
#: No count, and no time in seconds, is larger; nothing that states one is longer in characters or digits.
_MOST, _MOST_S, _LONGEST, _DIGITS = 1e15, 1e12, 40, 15
_EMPTY = {"", "nan", "none", "null", "unknown", "n/a", "-", "none assigned", "(null)"}


class TableColumns:
    """Which column of a file states what, by the spellings of ``data/simulation/cluster_traces.toml``."""

    def __init__(self, kind: str, there: Iterable[str], path: Path, unit: str = "line") -> None:
        self.unit = unit
        self.there = [str(one) for one in there]
        self.path = path
        known = read_data("simulation/cluster_traces.toml")
        misnomers = {
            one["column"] for one in known["not_a_name"] if all(name in self.there for name in one["has"])
        }  # fmt: skip
        self.spellings = {what: names for what, names in known[kind].items() if what != "source"}
        self.found = {
            what: next((name for name in names if name in self.there and name not in misnomers), None)
            for what, names in self.spellings.items()
        }

    def need(self, *any_of: str) -> None:
        """Raises `InputError` where the file has none of these."""
        if not any(self.found[what] for what in any_of):
            usual = ", ".join(self.spellings[any_of[0]][:5])
            has = shorten(", ".join(self.there), most=120)
            raise InputError(f"{self.path.name} has no column for {any_of[0]}; name it one of {usual} (it has {has})")

    def row(self, line: int, values: Mapping[str, Any]) -> TableRow:
        return TableRow(self, line, values)


class TableRow:
    """One line of a table."""

    __slots__ = ("columns", "line", "values")

    def __init__(self, columns: TableColumns, line: int, values: Mapping[str, Any]) -> None:
        self.columns, self.line, self.values = columns, line, values

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.columns.path.name} {self.columns.unit} {self.line}"

    def word(self, what: str) -> str:
        """The text of a cell; "" where there is none."""
        name = self.columns.found[what]
        value = self.values.get(name) if name is not None else None
        text = "" if value is None else str(value).strip()
        return "" if text.lower() in _EMPTY else text

    def number(self, what: str) -> float | None:
        value = self._value(what, "a number")
        if value is not None and not 0 <= value <= _MOST:
            raise self.wrong(what, self.word(what), f"is out of range; give 0 or more, up to {_MOST:g}")
        return value

    def _value(self, what: str, kind: str) -> float | None:
        text = self.word(what)
        try:
            return float(text) if text else None
        except ValueError:
            raise self.wrong(what, text, f"is not {kind}") from None

    def whole(self, what: str, default: int) -> int:
        value = self.number(what)
        if value is None:
            return default
        if value != int(value):
            raise self.wrong(what, self.word(what), "is not a whole number")
        return int(value)

    def signed(self, what: str) -> int:
        value = self._value(what, "a whole number") or 0.0
        if not abs(value) <= _MOST:
            raise self.wrong(what, self.word(what), f"is out of range; give a whole number up to {_MOST:g} either way")
        return int(value)

    def truth(self, what: str, *, default: bool = False) -> bool:
        text = self.word(what).lower()
        if not text:
            return default
        if text not in ("true", "false", "yes", "no", "1", "0"):
            raise self.wrong(what, text, "is neither yes nor no")
        return text in ("true", "yes", "1")

    def seconds(self, what: str) -> float | None:
        """Seconds of a plain number, of D-HH:MM:SS, or of a date."""
        text = self.word(what)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            pass
        else:
            if not 0 <= value <= _MOST_S:
                raise self.wrong(what, text, f"is negative or no time; times are 0 s or more, up to {_MOST_S:g}")
            return value
        elapsed = _ELAPSED.fullmatch(text[:_LONGEST])
        if elapsed is not None:
            days, hours, minutes, rest = elapsed.groups()
            value = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes)) * 60 + float(rest)
            if value > _MOST_S:
                raise self.wrong(what, text, f"is no time; times are 0 s or more, up to {_MOST_S:g}")
            return value
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise self.wrong(what, text, "is no time; give seconds, D-HH:MM:SS or 2026-11-30 12:00:00") from None

    def limit_s(self) -> float | None:
        """Seconds that it may take; None where nothing bounds it. Slurm's raw limit is in minutes (sacct(1), TimelimitRaw)."""
        if self.word("limit").upper() in ("UNLIMITED", "INFINITE", "PARTITION_LIMIT", "NOT_SET"):
            return None
        if self.word("limit_minutes").isdecimal():
            return self.whole("limit_minutes", 0) * 60.0
        return self.seconds("limit")

    def tres_gpus(self) -> tuple[int, str]:
        """GPUs and their kind in Slurm's words, ``gres/gpu:a100=8``."""
        found = _TRES_GPU.findall(self.word("tres"))
        if not found:
            return 0, ""
        return max(self.counted("tres", many) for _, many in found), next((kind for kind, _ in found if kind), "")

    def tres_cpus(self) -> int:
        """CPUs in Slurm's words, ``cpu=16``."""
        found = _TRES_CPU.search(self.word("tres"))
        return 0 if found is None else self.counted("tres", found[1])

    def counted(self, what: str, digits: str) -> int:
        """A count in digits. Raises `InputError` where it is larger than any."""
        if len(digits) > _DIGITS:
            raise self.wrong(what, digits, f"is out of range; give up to {_MOST:g}")
        return int(digits)

    def wrong(self, what: str, value: object, why: str) -> InputError:
        return self.error(f"{what} {shorten(str(value), most=40)!r} {why}")

    def at_line(self, error: InputError) -> InputError:
        """``error`` with the line, where it does not name it yet."""
        return error if str(error).startswith(self.columns.path.name) else self.error(str(error))

    def error(self, message: str) -> InputError:
        return InputError(f"{self.where}: {message}")
