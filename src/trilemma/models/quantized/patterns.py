"""Module patterns of quantised checkpoints: which tensors a list of names, globs and regular expressions speaks of.

Toolkits write the same module in different ways: exact names, bare components (``lm_head``, ``gate``), globs
(``model.layers.0*``), regular expressions behind ``re:``, with or without the wrapper of a multimodal model, before or
after projections were fused. A matcher folds these spellings together and answers for a thousand tensors in milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from trilemma.errors import InputError, shorten
from trilemma.models.quantized.automaton import Automaton

#: Longest pattern and most patterns that are read from a file; of globs and expressions fewer are, since each may match any name.
MAX_PATTERN_LENGTH = 400
MAX_PATTERNS = 200_000
_MOST_EXPRESSIONS = 4_096

_WRAPPERS = ("model.language_model.", "language_model.model.", "language_model.", "backbone.", "transformer.", "model.")
_SYNONYMS = {
    "ffn": "mlp",
    "feed_forward": "mlp",
    "block_sparse_moe": "mlp",
    "attn": "self_attn",
    "attention": "self_attn",
}
_FUSED = {
    "q_proj": ("qkv_proj",),
    "k_proj": ("qkv_proj",),
    "v_proj": ("qkv_proj",),
    "qkv_proj": ("q_proj",),
    "gate_proj": ("gate_up_proj",),
    "up_proj": ("gate_up_proj",),
    "gate_up_proj": ("gate_proj",),
}
_SUFFIXES = (".weight", ".bias", ".weight_packed", ".qweight", ".blocks", ".scales")


def canonical(name: str) -> str:
    """``name`` without wrapper and with one word for each kind of block (``ffn`` and ``block_sparse_moe`` are ``mlp``)."""
    for wrapper in _WRAPPERS:
        if name.startswith(wrapper):
            name = name[len(wrapper) :]
            break
    if name == "head":
        return "lm_head"
    return ".".join(_SYNONYMS.get(part, part) for part in name.split("."))


@lru_cache(maxsize=65_536)
def spellings(tensor_name: str) -> tuple[str, ...]:
    """The canonical module names that a checkpoint may use for the module that owns ``tensor_name``."""
    module = tensor_name
    for suffix in _SUFFIXES:
        module = module.removesuffix(suffix)
    module = canonical(module)
    names = [module]
    head, _, last = module.rpartition(".")
    names += [f"{head}.{fused}" for fused in _FUSED.get(last, ())]
    if ".experts." in module:
        names += [name.replace(".experts.", ".experts.0.", 1) for name in names if ".experts.0." not in name]
    elif module.endswith(".experts"):
        names.append(module + ".0")
    return tuple(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Matcher:
    """A compiled list of patterns: bare or full names, prefixes (``name*``) and everything else as regular expressions."""

    names: frozenset[str]
    prefixes: frozenset[str]
    globs: Automaton | None
    expressions: Automaton | None

    def matches(self, tensor_name: str) -> bool:
        """Whether any pattern speaks of the module that owns ``tensor_name``."""
        return any(self._matches_module(module) for module in spellings(tensor_name)) or self._matches_raw(tensor_name)

    def _matches_module(self, module: str) -> bool:
        if self.names and any(run in self.names for run in _runs(module)):
            return True
        if self.prefixes and any(module[:end] in self.prefixes for end in range(1, len(module) + 1)):
            return True
        if self.globs is not None and self.globs.matches(module):
            return True
        return self.expressions is not None and self.expressions.matches(module)

    def _matches_raw(self, tensor_name: str) -> bool:
        return self.expressions is not None and self.expressions.matches(tensor_name.removesuffix(".weight"))


def _runs(module: str) -> Iterator[str]:
    """Every contiguous run of dotted components: a bare ``gate`` means the component, never part of ``gate_proj``."""
    parts = module.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:end])


@lru_cache(maxsize=256)
def matcher(patterns: tuple[str, ...]) -> Matcher:
    """Compile ``patterns``. Raises `InputError` for expressions that need backtracking, do not parse, or are too many."""
    names: set[str] = set()
    prefixes: set[str] = set()
    globs: set[str] = set()
    expressions: set[str] = set()
    for pattern in patterns:
        if pattern.startswith("re:"):
            expressions.add(pattern[3:])
        elif "*" not in pattern and "?" not in pattern:
            names.add(canonical(pattern.removesuffix(".weight")))
        elif pattern.endswith("*") and not any(sign in pattern[:-1] for sign in "*?["):
            prefixes.add(canonical(pattern[:-1]))
        else:
            globs.update(_glob_variants(canonical(pattern)))
    if len(globs) + len(expressions) > _MOST_EXPRESSIONS:
        raise InputError(
            f"{len(globs) + len(expressions):,} module patterns hold wildcards or are expressions; at most"
            f" {_MOST_EXPRESSIONS:,} are matched, list the modules by name"
        )
    return Matcher(
        names=frozenset(names),
        prefixes=frozenset(prefixes),
        globs=Automaton(sorted(map(_glob_expression, globs))) if globs else None,
        expressions=Automaton(sorted(expressions)) if expressions else None,
    )


def _glob_variants(glob: str) -> tuple[str, ...]:
    """A glob means the module and what is under it; ``*.attn.*`` means the block ``attn`` too."""
    bare = glob.removesuffix(".*")
    return (glob, bare) if bare != glob else (glob, glob + ".*")


def _glob_expression(glob: str) -> str:
    """A glob as an expression that ends where the name ends; a bracket that is never closed is a character."""
    text, at = "", 0
    while at < len(glob):
        sign = glob[at]
        closed = glob.find("]", at + 2) if sign == "[" else -1
        if closed > 0:
            members = glob[at + 1 : closed]
            negated = members.startswith("!")
            text += f"[{'^' if negated else ''}{_class_members(members.removeprefix('!'))}]"
            at = closed
        else:
            text += {"*": ".*", "?": "."}.get(sign, re.escape(sign))
        at += 1
    return text + r"\Z"


def _class_members(members: str) -> str:
    return "".join(sign if sign == "-" else re.escape(sign) for sign in members)


def read_patterns(value: object, *, field: str) -> tuple[str, ...]:
    """A list of module patterns as a tuple; None is empty. Raises `InputError` for anything that is not a list of names."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise InputError(f"{field} is {shorten(repr(value))}; it must be a list of module names")
    patterns = tuple(value)
    for pattern in patterns:
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_LENGTH:
            raise InputError(
                f"{field} holds {shorten(repr(pattern))}; module names are strings of at most {MAX_PATTERN_LENGTH} characters"
            )
    if len(patterns) > MAX_PATTERNS:
        raise InputError(f"{field} has {len(patterns):,} entries; at most {MAX_PATTERNS:,} are read")
    return patterns
