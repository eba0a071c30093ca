"""Speculative decoding on vLLM's command line: ``--speculative-config`` and its shorthands to a `Draft`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.command_line import FlagSettings
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans import Draft

#: The keys of vLLM's configuration that a `Draft` holds; the others travel in ``extra["speculative-config"]``.
_KEYS = ("method", "model", "num_speculative_tokens")
#: Names of the same thing: vLLM's (config/speculative.py) → this project's.
_METHODS = {"draft_model": "draft", "[ngram]": "ngram"}
_MOST_TOKENS = 4096
#: vLLM's ``suffix_decoding_max_tree_depth``, the tokens of suffix decoding when none are stated (config/speculative.py).
_SUFFIX_DEPTH_KEY = "suffix_decoding_max_tree_depth"


def read_draft(settings: FlagSettings) -> tuple[Draft | None, dict[str, Any], list[PlanWarning]]:
    """The draft, the keys that it does not hold, and what was assumed. Raises `InputError`."""
    config = _configuration(settings)
    if not config:
        return None, {}, []
    warnings: list[PlanWarning] = []
    model = _text(config, "model")
    method = _text(config, "method") or _method_of(model)
    if method is None:
        raise InputError(
            'speculative decoding without method or model; give --speculative-config \'{"method": "mtp"}\''
        )
    method = _METHODS.get(method, "mtp" if method.endswith("_mtp") else method)
    if method == "ngram" and model in ("ngram", "[ngram]"):
        model = None
    tokens = config.get("num_speculative_tokens")
    if tokens is None:
        tokens = _assumed_tokens(method, config)
        message = f"--speculative-config states no num_speculative_tokens: {tokens} assumed"
        warnings.append(PlanWarning(code="assumed-draft-tokens", message=message))
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= _MOST_TOKENS:
        raise InputError(
            f"--speculative-config num_speculative_tokens {shorten(str(tokens))!r} is out of range; "
            f"give a whole number from 1 to {_MOST_TOKENS}"
        )
    rest = {key: value for key, value in config.items() if key not in _KEYS}
    return Draft(method=method, tokens=tokens, model=model), rest, warnings


def draft_configuration(draft: Draft, rest: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping that ``--speculative-config`` takes. ``acceptance`` is no option of the engine and is left out."""
    methods = {ours: theirs for theirs, ours in _METHODS.items() if not theirs.startswith("[")}
    config: dict[str, Any] = {"method": methods.get(draft.method, draft.method)}
    if draft.model is not None:
        config["model"] = draft.model
    return {**config, "num_speculative_tokens": draft.tokens, **rest}


def _configuration(settings: FlagSettings) -> dict[str, Any]:
    whole = settings.value("speculative-config")
    if whole is not None and not isinstance(whole, Mapping):
        if str(whole) in ("", "None"):
            whole = None
        else:
            raise InputError(
                f'--speculative-config {shorten(str(whole))!r} is not a JSON object such as {{"method": "mtp"}}'
            )
    config = dict(whole or {})
    for key, names in (
        ("method", ("spec-method",)),
        ("model", ("spec-model", "speculative-model")),
        ("num_speculative_tokens", ("spec-tokens", "num-speculative-tokens")),
    ):
        for name in names:
            if (value := settings.value(name)) is not None:
                config.setdefault(key, value)
    return config


def _text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or len(value) > 4096:
        raise InputError(
            f"--speculative-config {key} {shorten(str(value))!r} is not a name; give a text such as eagle3"
        )
    return value


def _method_of(model: str | None) -> str | None:
    """The method that vLLM infers from the draft model's name (SpeculativeConfig.__post_init__, 0.33)."""
    if model is None:
        return None
    name = model.lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    for mark, method in (("eagle3", "eagle3"), ("eagle-", "eagle"), ("dflash", "dflash")):
        if mark in name:
            return method
    return "draft"


def _assumed_tokens(method: str, config: Mapping[str, Any]) -> int:
    depth = config.get(_SUFFIX_DEPTH_KEY, 24)
    return depth if method == "suffix" and isinstance(depth, int) and not isinstance(depth, bool) else 1
