"""The values that flags with a closed list take, by version. Facts: ``data/engines/<engine>_values.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from trilemma.data.digest import DATA
from trilemma.data.files import read_data
from trilemma.versions import Version, padded, parse_version


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagValues:
    """``rows``: flag → (first version read, values) from old to new, without values where any is taken.

    ``versions`` are those read, oldest first; ``any_case`` the flags whose values may be written in capitals or small letters.
    """

    versions: tuple[Version, ...] = ()
    any_case: frozenset[str] = frozenset()
    rows: Mapping[str, tuple[tuple[Version, tuple[str, ...]], ...]] = field(default_factory=dict)

    def at(self, flag: str, version: Version) -> tuple[str, ...]:
        """The values of ``flag`` that ``version`` may take: between two versions read those of either. () where any is."""
        rows = self.rows.get(flag, ())
        before = [values for since, values in rows if since <= version]
        after = [values for since, values in rows if since > version]
        read = version in self.versions or version > self._newest()
        known = before[-1:] + ([] if before and read else after[:1])
        if not all(known):
            return ()
        return tuple(dict.fromkeys(value for values in known for value in values))

    def takes(self, flag: str, value: str, version: Version) -> bool:
        """Whether ``flag`` may be given ``value``: False only where the versions read show that it may not."""
        values = self.at(flag, version)
        return not values or self._among(flag, value, values)

    def ever(self, flag: str, value: str) -> bool:
        """Whether any version read takes ``value``."""
        return any(self._among(flag, value, values) for _, values in self.rows.get(flag, ()))

    def is_newer(self, version: Version) -> bool:
        """Whether ``version`` is newer than every one read."""
        return version > self._newest()

    def _newest(self) -> Version:
        return self.versions[-1] if self.versions else ()

    def _among(self, flag: str, value: str, values: tuple[str, ...]) -> bool:
        if flag in self.any_case:
            return value.lower() in {one.lower() for one in values}
        return value in values


@cache
def read_values(file: str, engine: str) -> FlagValues:
    """The values in ``data/engines/<file>``; none where there is no such file."""
    if not (DATA / "engines" / file).is_file():
        return FlagValues()
    data = read_data(f"engines/{file}")
    rows = {
        flag: tuple((_numbers(row["since"], engine), tuple(row["takes"])) for row in rows)
        for flag, rows in data["values"].items()
    }
    return FlagValues(
        versions=tuple(_numbers(version, engine) for version in data["versions"]),
        any_case=frozenset(data["any_case"]),
        rows=rows,
    )


def _numbers(version: str, engine: str) -> Version:
    return padded(parse_version(version, engine=engine))
