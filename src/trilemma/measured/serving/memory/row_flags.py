"""The column ``other_flags`` of a serving-memory row: ``name=value; name=value`` of flags that have no column of their own.

Flags that the engine's own table knows count as on its command line; others are listed as left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trilemma import engines
from trilemma.commands.flag_words import parse_value
from trilemma.errors import InputError, shorten
from trilemma.measured.tables import Row, UnusableRow

_FLAG = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s*=\s*([^;,\s]+)")
#: Flags that a question reads itself.
_READ = ("decode_context_parallel_size", "mamba_cache_mode", "enable_dp_attention")


def other_flags(row: Row, engine: str, assumed: list[str]) -> tuple[Mapping[str, str], dict[str, Any]]:
    """(flags of a question's own by name, options of the engine's own). Raises `UnusableRow` for what is not modelled."""
    text = row.text("other_flags")[:1000]
    flags = {name.lower().replace("-", "_"): value for name, value in _FLAG.findall(text)}
    rest = _FLAG.sub("", text).strip(" ;,")
    if rest.startswith("layer split"):
        raise UnusableRow("an uneven split of layers over pipeline stages is not modelled")
    if "enable_dp_attention" in rest.replace("-", "_"):
        flags["enable_dp_attention"] = "true"
        rest = re.sub(r"enable[_-]dp[_-]attention", "", rest).strip(" ;,")
    extra, unknown = _of_engine(engine, {name: value for name, value in flags.items() if name not in _READ})
    if unknown or rest:
        assumed.append(
            f"other flags not understood and left out: {shorten(', '.join([*unknown, *([rest] if rest else [])]))}"
        )
    if not flags.get("decode_context_parallel_size", "1").isdecimal():
        raise UnusableRow("decode_context_parallel_size is not a whole number")
    return flags, extra


def _of_engine(engine: str, flags: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Options by the engine's table of flags, and the names that it does not know."""
    table = engines.get(engine).flags()
    extra: dict[str, Any] = {}
    unknown = []
    for name, value in flags.items():
        flag = next((table.flags[word] for word in (name.replace("_", "-"), name) if word in table.flags), None)
        if flag is None or flag.field != "extra":
            unknown.append(name)
            continue
        try:
            extra[flag.name] = parse_value(flag, value, shown=f"other_flags {name}")
        except InputError as error:
            raise UnusableRow(str(error)) from None
    return extra, unknown
