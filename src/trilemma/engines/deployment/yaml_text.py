"""Manifests as YAML that every parser reads alike: text that another dialect could take for a number or a flag is quoted."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from trilemma.foreign_words import shown

#: Plain to every dialect. What begins otherwise (digits, signs, dots) is a number to one of them: 1e-05, 0o17, 12:30.
_PLAIN = re.compile(r"(--)?[A-Za-z][A-Za-z0-9_./-]*|/[A-Za-z0-9_./-]*")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's own signature
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:str"
    if "\n" in value and all(line.isprintable() for line in value.split("\n")):
        return dumper.represent_scalar(tag, value, style="|")
    plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS
    return dumper.represent_scalar(tag, value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def yaml_text(documents: Sequence[Any], *, comments: Sequence[str] = ()) -> str:
    """``documents`` as one stream under ``comments`` (a comment cannot be quoted: signs that do not print are replaced)."""
    head = "".join(f"# {shown(line)}\n" for line in comments)
    return head + str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize))
