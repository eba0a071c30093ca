"""Another configuration for the same requests, as options say it: a mapping, or NAME=VALUE in a row."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from trilemma.ask.options import Option, options_of
from trilemma.ask.reading import truth
from trilemma.ask.simulation_options import SIMULATE, SIMULATION
from trilemma.errors import InputError, UnknownName, shorten

#: What stands beside the options of a plan, and groups of options that a comparison leaves as they are.
_NOUNS, _SHARED = ("model", "gpu"), ("traffic",)
_LAYOUT = ("tp", "pp", "dp", "dcp", "ep", "replicas", "prefill", "decode")


def other_options(given: Any, first: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the other run: those of the ``first`` (``model`` and ``gpu`` among them), with what ``given`` changes; a
    change of cards or layout begins with no layout. Raises `InputError`."""
    changed = changed_by(given)
    if not changed:
        raise InputError("`compare` changes nothing; give options such as 'tp=2 replicas=2' or engine=sglang")
    known = options_of(SIMULATE, SIMULATION)
    for name in changed:
        if name in _NOUNS:
            continue
        if name not in known:
            raise UnknownName("option of simulate", name, [*known, *_NOUNS])
        if known[name].group in _SHARED or name in ("compare", "bounds"):
            raise InputError(f"`compare` gives `{name}`, but both serve the same requests; state it once, outside")
    anew = any(name in changed for name in (*_LAYOUT, "gpu"))
    kept = {name: value for name, value in first.items() if not (anew and name in _LAYOUT)}
    return kept | changed


def changed_by(given: Any) -> dict[str, Any]:
    """The options that ``given`` states for the other run. Raises `InputError`."""
    return dict(given) if isinstance(given, Mapping) else _read(str(given))


def _read(words: str) -> dict[str, Any]:
    try:
        tokens = shlex.split(words)
    except ValueError as error:
        raise InputError(f"`compare` {shorten(words)!r} cannot be read: {error}") from None
    known, found = options_of(SIMULATE, SIMULATION), dict[str, Any]()
    for token in tokens:
        name, equals, value = token.lstrip("-").replace("-", "_", token.partition("=")[0].count("-")).partition("=")
        off = not equals and name.startswith("no_")
        option = known.get(name.removeprefix("no_") if off else name)
        if not equals and (option is None or not _is_switch(option)):
            raise InputError(
                f"`compare` has {shorten(token)!r}, which is no switch; write options of the other run as NAME=VALUE, such as"
                " tp=2 or engine=sglang, and several in quotes: 'tp=2 max_seqs=64'"
            )
        if equals:
            found[name] = value
        elif option is not None:
            found[option.name] = not off
    return found


def _is_switch(option: Option) -> bool:
    return option.maybe or option.read is truth
