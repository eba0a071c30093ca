"""Compiled modules run as they were written while a watch looks inside: compiled code calls no hooks of layers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch


def run_eagerly() -> Callable[[], None]:
    """From now on compiled modules run uncompiled, until the function that is returned is called.

    Nothing changes where nothing was ever compiled, or where this is called from within compiled code, which refuses it.
    """
    if "torch._dynamo" not in sys.modules:
        return _nothing
    try:
        torch.compiler.set_stance("force_eager")
    except RuntimeError:
        return _nothing
    return functools.partial(torch.compiler.set_stance, "default")


def _nothing() -> None:
    pass
