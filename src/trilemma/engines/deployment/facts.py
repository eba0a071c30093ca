"""Images, ports and names of objects that deployment files take from data/deployment.toml and an engine's own data file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data, read_table
from trilemma.engines import traits_of
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan
from trilemma.versions import Version

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,100}")


@cache
def facts() -> Mapping[str, Any]:
    """The whole table, read once."""
    return read_data("deployment.toml")


def of_engine(name: str) -> Mapping[str, Any]:
    """Facts of one engine: ``[deployment]`` of its data file; empty for one that no files are written for."""
    return _of_package(traits_of(name).package)


@cache
def _of_package(package: str) -> Mapping[str, Any]:
    return read_table(f"engines/{package}.toml", "deployment")


def of_maker(name: str) -> Mapping[str, Any]:
    """How cards of a maker are asked for; makers without images are asked for as NVIDIA's are."""
    makers: Mapping[str, Mapping[str, Any]] = facts()["makers"]
    return makers.get(name, makers["nvidia"])


def image(engine: str, maker: str, *, release: str = "", build: str = "") -> str | None:
    """The public image of one release for the maker's cards; None where there is none."""
    pattern = of_engine(engine)["images"].get(maker)
    return None if pattern is None else str(pattern).format(release=release, build=f"-{build}" if build else "")


def released(plan: Plan, stated: str | None, versions: Sequence[Version], *, engine: str) -> tuple[Plan, str]:
    """(``plan`` with its engine's version, that version): its own, else the one ``stated``, else the newest of ``versions``."""
    newest = ".".join(map(str, versions[-1]))
    release = release_text(plan.engine.version or stated or newest, engine=engine)
    return replace(plan, engine=replace(plan.engine, version=release)), release


def release_text(text: str, *, engine: str) -> str:
    """A version that may stand in an image's tag and in a comment, as releases are numbered. Raises `InputError`."""
    bare = text.strip().removeprefix("v")
    bare += ".0" if re.fullmatch(r"[0-9]+\.[0-9]+", bare) else ""
    if _TAG.fullmatch(bare) is None:
        raise InputError(f"{engine} version {shorten(repr(text))} is not a version such as 0.19.0")
    return bare
