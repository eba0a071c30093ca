"""Models as keys of caches."""

from __future__ import annotations


class ByIdentity:
    """Wraps an object so that it is a cache key by identity: models hold mappings and cannot be hashed."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value
