"""One short name for the state of all facts, so that an answer can be traced to them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypedDict

DATA = Path(__file__).parent


class Made(TypedDict):
    """By what a document was made."""

    version: str
    data_digest: str


def made_by() -> Made:
    """Which version of the code and which facts made a document."""
    return {"version": _version(), "data_digest": data_digest()}


@cache
def _version() -> str:
    from trilemma import __version__  # package metadata is slow to read

    return str(__version__)


@cache
def data_digest() -> str:
    """Twelve hex digits over names and sizes-and-contents of every data file."""
    import hashlib  # slow to import, and most commands ask for no digest

    digest = hashlib.sha256()
    for path in sorted(DATA.rglob("*")):
        if path.suffix in {".toml", ".json"}:
            digest.update(path.relative_to(DATA).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
