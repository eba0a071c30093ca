"""A configuration file read field by field: bounded, typed, and with a record of what was used and what was filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.models.harmless_keys import is_harmless

#: A list in a configuration has an entry a layer; nothing legitimate is longer.
MOST_ENTRIES = 4096
MOST_LAYERS = 1024
MOST_KEYS = 4096


class NoDefault:
    """Marks a field without a default."""


MISSING = NoDefault()


class Fields:
    """Typed access to one mapping of a configuration (the text part, the vision part, a block).

    ``where`` prefixes keys in messages. Reading marks a key as understood; `unknown` lists those that nobody read. A
    default that decides a size is written to ``assumptions``, which sections share with their parent.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str = "", family: str = "") -> None:
        if not isinstance(values, Mapping):
            raise InputError(f"{where or 'the configuration'} is {describe(values)}; give a JSON object")
        if len(values) > MOST_KEYS:
            raise InputError(f"{where or 'the configuration'} has {len(values)} keys; at most {MOST_KEYS} are read")
        self.values = values
        self.where = where
        self.family = family
        self.used: set[str] = set()
        self.sections: list[Fields] = []
        self.assumptions: list[str] = []
        self.left_out: list[str] = []
        #: Name of the format of unquantised tensors, for readers that need it.
        self.dtype = "bf16"

    # what is there

    def has(self, key: str) -> bool:
        """Whether ``key`` is present and not null; marks it as understood."""
        self.used.add(key)
        return self.values.get(key) is not None

    def raw(self, *keys: str) -> Any:
        """The first value among ``keys`` that is present and not null, unchecked, else None; marks all as understood."""
        self.used.update(keys)
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                return value
        return None

    def ignore(self, *keys: str) -> None:
        """Mark keys as understood and without weight here."""
        self.used.update(keys)

    def assume(self, text: str) -> None:
        if text not in self.assumptions:
            self.assumptions.append(text)

    def leave_out(self, text: str) -> None:
        """Assume that a part weighs nothing, of which no tensor is counted: the verdict is less sure for it."""
        self.assume(text)
        self.left_out.append(text)

    # typed readers

    def count(
        self, *keys: str, default: int | NoDefault = MISSING, low: int = 1, high: int = 2**24, quiet: bool = False
    ) -> int:
        """A whole number in [low, high] under the first of ``keys`` present.

        A ``default`` used is listed as assumed unless ``quiet``. Raises `InputError` when missing or out of bounds.
        """
        value = self.raw(*keys)
        if value is None:
            if isinstance(default, NoDefault):
                raise InputError(f"{self.label(keys[0])} is missing; give a whole number of at least {low}")
            if not quiet:
                self.assume(f"{keys[0]} is not given; taken as {default}, the default of {self.family}")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.label(keys[0])} is {describe(value)}; give a whole number of at least {low}")
        if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
            raise InputError(f"{self.label(keys[0])} is {value}; give a whole number of at least {low}")
        if not low <= value <= high:
            raise InputError(
                f"{self.label(keys[0])} is {shorten(str(value))}; give a whole number from {low} to {high}"
            )
        return int(value)

    def agreed(self, *keys: str, high: int) -> int:
        """As `count` from 1, for a size under several names: two that differ are refused, since libraries pick either."""
        stated = {key: self.values[key] for key in keys if self.values.get(key) is not None}
        first = next(iter(stated), keys[0])
        for key, value in stated.items():
            if value != stated[first]:
                raise InputError(
                    f"{self.label(first)} is {describe(stated[first])} and {self.label(key)} is {describe(value)}, two names"
                    " of one size; keep one"
                )
        self.ignore(*keys)
        return self.count(first, high=high)

    def optional_count(self, *keys: str, low: int = 1, high: int = 2**24) -> int | None:
        """As `count`, with None for a field that is absent or null."""
        return self.count(*keys, low=low, high=high) if self.raw(*keys) is not None else None

    def number(self, key: str, *, default: float, low: float, high: float) -> float:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InputError(f"{self.label(key)} is {describe(value)}; give a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, *keys: str, default: bool, quiet: bool = True) -> bool:
        value = self.raw(*keys)
        if value is None:
            if not quiet:
                self.assume(f"{keys[0]} is not given; taken as {str(default).lower()}, the default of {self.family}")
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.label(keys[0])} is {describe(value)}; give true or false")
        return value

    def text(self, *keys: str, default: str = "") -> str:
        value = self.raw(*keys)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(f"{self.label(keys[0])} is {describe(value)}; give a string")
        return value[:4096]

    def entries(self, *keys: str) -> Sequence[Any] | None:
        """A list of at most `MOST_ENTRIES` entries, unchecked inside; None when absent."""
        value = self.raw(*keys)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise InputError(f"{self.label(keys[0])} is {describe(value)}; give a list")
        if len(value) > MOST_ENTRIES:
            raise InputError(f"{self.label(keys[0])} has {len(value)} entries; at most {MOST_ENTRIES} are read")
        return value

    def counts(self, *keys: str, low: int = 0, high: int = 2**24) -> tuple[int, ...] | None:
        """A list of whole numbers in [low, high]; None when absent."""
        value = self.entries(*keys)
        if value is None:
            return None
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not low <= item <= high:
                raise InputError(f"{self.label(keys[0])} holds {describe(item)}; give whole numbers {low} to {high}")
        return tuple(value)

    def words(self, *keys: str) -> tuple[str, ...] | None:
        """A list of strings; None when absent."""
        value = self.entries(*keys)
        if value is None:
            return None
        for item in value:
            if not isinstance(item, str):
                raise InputError(f"{self.label(keys[0])} holds {describe(item)}; give strings")
        return tuple(value)

    def layers(self, *keys: str) -> int:
        return self.agreed(*(keys or ("num_hidden_layers",)), high=MOST_LAYERS)

    def per_layer(self, key: str, layers: int, value: Sequence[Any] | None) -> Sequence[Any] | None:
        """``value`` cut to ``layers`` entries; raises `InputError` when it is shorter."""
        if value is None:
            return None
        if len(value) < layers:
            raise InputError(f"{self.label(key)} has {len(value)} entries for {layers} layers; give one a layer")
        return value[:layers]

    def layer_types(self, layers: int, default: Sequence[str]) -> Sequence[str]:
        """``layer_types`` with one entry a layer, or ``default``."""
        return self.per_layer("layer_types", layers, self.words("layer_types")) or default

    def section(self, key: str, *, family: str = "") -> Fields | None:
        """The mapping under ``key`` as fields of its own; None when absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        part = Fields(value, where=self.label(key), family=family or self.family)
        part.assumptions, part.left_out = self.assumptions, self.left_out
        self.sections.append(part)
        return part

    # what is left

    def label(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def unknown(self) -> tuple[str, ...]:
        """Keys that were not read, are not known to be harmless and say something; sorted, at most 100."""
        left = [
            printable(self.label(str(key)))
            for key, value in self.values.items()
            if key not in self.used and not is_harmless(str(key)) and not says_nothing(value)
        ]
        for part in self.sections:
            left.extend(part.unknown())
        return tuple(sorted(left)[:100])


def says_nothing(value: Any) -> bool:
    """Whether a value states no more than an absent key would."""
    return value is None or value is False or value in ("", [], {})


def printable(text: str) -> str:
    """``text`` cut short, with a question mark for each character that a terminal might obey or fail to show."""
    return "".join(sign if sign.isprintable() else "?" for sign in shorten(text))


def describe(value: Any) -> str:
    """A hostile value named in a few words."""
    if isinstance(value, str):
        return repr(shorten(value, most=40))
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "null"
    if isinstance(value, int | float):
        return shorten(str(value), most=40) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else type(value).__name__
