"""The settings of a command as its version takes them: values of renamed flags kept, words that it refuses named and dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trilemma.commands.command_line import FlagSetting, FlagSettings
from trilemma.commands.flag_words import parse_value
from trilemma.commands.flags import Flag, FlagTable
from trilemma.engines.base import EngineCommand
from trilemma.errors import PlanWarning, nearest, shorten
from trilemma.versions import Version

#: Codes of warnings by which a version refuses a command before it loads anything: whatever the version, or where it is stated.
_REFUSED = ("refused-flag", "stray-word", "refused-value")
_REFUSED_AT = ("removed-flag", "newer-flag", "removed-value")
_MOST_RENAMED = 4
#: Words that leave a choice to the engine.
_OPEN = ("", "None", "auto")


def put_in_force(settings: FlagSettings, table: FlagTable, version: str | None) -> list[PlanWarning]:
    """What must be said of a command's flags and values; ``settings`` are left as ``version`` (None: the newest read) has them.

    The value of a flag that the version calls otherwise moves to that name, unless that flag is given too. A value that the
    version does not take is dropped.
    """
    at = table.at(version)
    engine = f"{table.engine} {version or '.'.join(map(str, at))}"
    warnings = [_unknown(word, table, engine, version) for word in dict.fromkeys(settings.unknown)]
    for name in settings.replaced:
        message = f"{table.engine} takes the dotted keys of --{name} alone and drops the whole value given beside them"
        warnings.append(PlanWarning(code="replaced-value", message=message))
    for name, setting in list(settings.by_name.items()):
        flag = setting.flag
        if not flag.exists_at(at):
            warnings += _renamed(settings, setting, table, at, engine)
            continue
        if flag.note and at >= table.versions[-1]:
            warnings.append(PlanWarning(code="deprecated-flag", message=f"--{flag.name}: {flag.note}"))
        warnings += _value_in_force(settings, name, table, at, engine)
    return warnings


def values_in_force(
    settings: FlagSettings, names: Iterable[str], table: FlagTable, version: str | None
) -> list[PlanWarning]:
    """What must be said of the values of ``names`` that a file gave; one that ``version`` does not take is dropped."""
    at = table.at(version)
    engine = f"{table.engine} {version or '.'.join(map(str, at))}"
    return [warning for name in names for warning in _value_in_force(settings, name, table, at, engine)]


def name_at(flag: Flag, table: FlagTable, at: Version) -> str | None:
    """What ``flag`` is called at ``at``: a flag, ``flag.key`` or ``flag=value``; None where nothing there says the same."""
    if not flag.gone_at(at):
        return next(
            (one.name for one in table.flags.values() if one.renamed_to == flag.name and one.exists_at(at)), None
        )
    today = flag.renamed_to
    for _ in range(_MOST_RENAMED):
        known = None if today is None else table.flags[_target(today)]
        if known is None or known.exists_at(at):
            return today
        if today != known.name:
            return None
        today = known.renamed_to
    return None


def refusals(command: EngineCommand) -> tuple[str, ...]:
    """Why the engine's own parser refuses a command, in words; without a stated version what is gone or new is not held
    against it."""
    codes = _REFUSED if command.plan.engine.version is None else (*_REFUSED, *_REFUSED_AT)
    return tuple(warning.message for warning in command.warnings if warning.code in codes)


def uncounted(extra: Mapping[str, Any], table: FlagTable) -> list[PlanWarning]:
    """Options that change memory in a way that no rule here counts: named, not silently passed over."""
    known = table.flags
    names = [f"--{name}" for name, value in extra.items() if name in known and known[name].uncounted and value]
    if not names:
        return []
    return [
        PlanWarning(code="not-counted", message=f"{', '.join(names)}: what this changes in memory is not counted yet")
    ]


def refused_value(flag: Flag, value: Any, table: FlagTable, at: Version) -> str | None:
    """Why ``flag`` cannot be given ``value`` at ``at``, in words; None where it can, for all that is known."""
    if not isinstance(value, str) or value in _OPEN or table.values.takes(flag.name, value, at):
        return None
    taken = ", ".join(table.values.at(flag.name, at))
    return f"takes no --{flag.name} {shorten(value)}; it takes {taken}"


def _value_in_force(settings: FlagSettings, name: str, table: FlagTable, at: Version, engine: str) -> list[PlanWarning]:
    said = _of_value(settings.by_name[name], table, at, engine)
    if said and said[0].code == "refused-value":
        del settings.by_name[name]
    return said


def _of_value(setting: FlagSetting, table: FlagTable, at: Version, engine: str) -> list[PlanWarning]:
    reason = refused_value(setting.flag, setting.value, table, at)
    if reason is None:
        return []
    if table.values.is_newer(at):
        message = f"{engine} is not known to take --{setting.flag.name} {shorten(setting.value)}"
        return [PlanWarning(code="unknown-value", message=message)]
    code = "removed-value" if table.values.ever(setting.flag.name, setting.value) else "refused-value"
    return [PlanWarning(code=code, message=f"{engine} {reason}")]


def _unknown(word: str, table: FlagTable, engine: str, version: str | None) -> PlanWarning:
    """A slip of a known flag, or a flag of a version whose flags were all read, is refused; another may be newer than they."""
    meant = table.meant_by(word)
    if meant is not None:
        return PlanWarning(
            code="refused-flag", message=f"{engine} knows no {word}; the nearest flag that it knows is --{meant}"
        )
    near = nearest(word.lstrip("-").replace("_", "-"), table.flags, most=2)
    hint = f"; did you mean {' or '.join('--' + name for name in near)}?" if near else ""
    if version is not None and table.at(version) in table.versions:
        return PlanWarning(code="refused-flag", message=f"{engine} knows no {word}{hint}")
    return PlanWarning(code="unknown-flag", message=f"{engine} is not known to have {word}{hint}")


def _renamed(
    settings: FlagSettings, setting: FlagSetting, table: FlagTable, at: Version, engine: str
) -> list[PlanWarning]:
    """A flag that the version has not: its value goes to the flag that says the same; what the version says of it."""
    flag, today = setting.flag, name_at(setting.flag, table, at)
    opposite = table.flags.get(flag.name.removeprefix("no-")) if flag.name.startswith("no-") else None
    if opposite is not None and opposite.kind == "toggle" and opposite.exists_at(at) and today is None:
        settings.by_name.setdefault(
            opposite.name, FlagSetting(flag=opposite, value=not setting.value, shown=setting.shown)
        )
        settings.by_name.pop(flag.name)
        return []
    if today is not None and flag.field in ("extra", "server"):
        _move(settings, setting, table, today)
    kept = "" if today is None else f"; use {_shown(today)}, which is given its value here"
    if not flag.gone_at(at):
        came = ".".join(map(str, flag.since))
        message = f"{engine} has no --{flag.name} yet (first seen in {came}) and would refuse it{kept}"
        return [PlanWarning(code="newer-flag", message=message)]
    gone = ".".join(map(str, flag.removed or ()))
    kept = kept or (f"; use --{flag.instead}" if flag.instead else "; leave it out")
    message = f"{engine} has no --{flag.name} (gone by {gone}) and would refuse it{kept}"
    return [PlanWarning(code="removed-flag", message=message)]


def _target(today: str) -> str:
    """The flag of what `name_at` answers."""
    return today.partition("=")[0].partition(".")[0]


def _shown(today: str) -> str:
    name, dot, key = today.partition(".")
    return f"{key} of --{name}" if dot else "--" + today.replace("=", " ")


def _move(settings: FlagSettings, setting: FlagSetting, table: FlagTable, today: str) -> None:
    """Gives the value of ``setting`` to the flag that says the same, unless that one is given itself."""
    flag = table.flags[_target(today)]
    name, is_fixed, fixed = today.partition("=")
    _, is_key, key = name.partition(".")
    stated = settings.by_name.get(flag.name)
    del settings.by_name[setting.flag.name]
    if is_key:
        whole = {} if stated is None else stated.value
        if not isinstance(whole, Mapping):
            return
        value: Any = {key: setting.value, **whole}
    elif stated is not None or (is_fixed and not setting.value):
        return
    else:
        value = parse_value(flag, fixed, shown=setting.shown) if is_fixed else setting.value
    settings.by_name[flag.name] = FlagSetting(flag=flag, value=value, shown=setting.shown)
