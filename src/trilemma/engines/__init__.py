"""The engines: each one's rules, its flags read and its flags written. Adding one is a package and its data file."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, cast

from trilemma.errors import UnknownName

if TYPE_CHECKING:
    from trilemma.engines.deployment import Fleet
    from trilemma.engines.engine import Engine
    from trilemma.engines.start_log import StartReader, StartUpLog
    from trilemma.engines.traits import EngineTraits


def readable() -> tuple[str, ...]:
    """The names of the engines whose commands are read."""
    from trilemma.engines.traits import every

    return tuple(every())


def canonical(name: str) -> str:
    """The registered name of an engine that ``name`` or an alias of it means; unknown names as they are."""
    from trilemma.engines.traits import aliases

    key = name.strip().lower()
    return aliases().get(key, key)


def traits_of(name: str) -> EngineTraits:
    """What the engine called ``name`` (case aside) can do. Raises `UnknownName` with near names."""
    from trilemma.engines.traits import every

    known = every()
    found = known.get(canonical(name))
    if found is None:
        raise UnknownName("engine", name, known, hint=f"engines known: {', '.join(known)}")
    return found


def get(name: str) -> Engine:
    """The engine called ``name`` (case aside), one object for each. Raises `UnknownName` with near names."""
    found = traits_of(name)
    return _engine(found.name, found.package)


@cache
def _engine(name: str, package: str) -> Engine:
    from trilemma.engines.engine import Engine

    return Engine(name, f"trilemma.engines.{package}")


def started_command(name: str, log: StartUpLog) -> list[str]:
    """The words of the command whose start ``log`` of the engine called ``name`` tells. Raises `InputError` naming what it
    does not state."""
    logged = importlib.import_module(f"trilemma.engines.{traits_of(name).package}.logged")
    return cast("list[str]", logged.command_of(log))


def log_readers() -> dict[str, tuple[tuple[str, ...], Callable[[], StartReader]]]:
    """Of every engine whose logs are read: the marks of lines that say something, and what takes them one by one."""
    from trilemma.engines.traits import every

    found = {}
    for name, one in every().items():
        if one.reads_logs:
            module = importlib.import_module(f"trilemma.engines.{one.package}.log")
            found[name] = (module.MARKS, module.LogReader)
    return found


def deployer(name: str) -> Callable[..., Fleet]:
    """``fleet`` of the engine called ``name``: a plan as its processes. Raises `UnknownName` for engines that have none."""
    from trilemma.engines.traits import every, those

    found = every().get(canonical(name))
    if found is None or not found.deploys:
        known = those("deploys")
        raise UnknownName("engine", name, known, hint=f"files are written for: {', '.join(known)}")
    from trilemma.engines.deployment.fleet import FleetAsked

    write = importlib.import_module(f"trilemma.engines.{found.package}.deploy").fleet
    return lambda **asked: cast("Fleet", write(FleetAsked(**asked)))
