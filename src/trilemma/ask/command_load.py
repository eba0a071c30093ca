"""The load that a command is judged under where it is told one, and the acceptance of its drafts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from trilemma.ask.nouns import draft_of
from trilemma.ask.options import fields_of
from trilemma.engines.base import EngineCommand
from trilemma.errors import InputError
from trilemma.workloads import Serving


def load_of(options: SimpleNamespace, expected: Serving) -> Serving:
    """``expected`` with what ``options`` state of the load in its place; the command's own context stands."""
    stated = {name: value for name, value in fields_of("load", options).items() if value}
    if "rate" in stated or "concurrency" in stated:
        expected = replace(expected, rate=None, concurrency=None)
    return replace(expected, **stated, shapes_plan=False)


def admitted(load: Serving, command: EngineCommand) -> Serving:
    """``load``, whose requests the command admits. Raises `InputError` for one that is longer."""
    context = command.plan.pool.options.context
    asked = (load.isl or 0) + (load.osl or 0)
    if context is not None and asked > context:
        seen = f", {load.image_tokens} of them images," if load.image_tokens else ""
        raise InputError(
            f"`isl` {load.isl}{seen} and `osl` {load.osl} are longer than the {context} tokens that the command admits; give"
            " shorter lengths, or raise the command's context"
        )
    return load


def with_acceptance(given: Any, command: EngineCommand) -> EngineCommand:
    """``command`` whose drafts are accepted as ``mtp:3:0.8`` says. Raises `InputError` for drafts that are not the command's."""
    if given is None:
        return command
    told, pool = draft_of(given), command.plan.pool
    own = pool.draft
    if own is None:
        raise InputError(
            f"`draft` {given}: the command drafts nothing; give its engine's own flags of speculative decoding"
        )
    if (told.method, told.tokens) != (own.method, own.tokens):
        raise InputError(
            f"`draft` {given}: the command says {own.method}:{own.tokens}; give {own.method}:{own.tokens}:SHARE"
        )
    drafted = replace(pool, draft=replace(own, acceptance=told.acceptance))
    return replace(command, plan=replace(command.plan, pools=(drafted,)))
