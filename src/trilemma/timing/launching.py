"""What the host takes to launch the kernels of one pass, which no graph replays."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork


def launching_s(machine: Machine, work: ModelWork, tokens: Numbers) -> Any:
    """Seconds in which the host launches the kernels of a pass of ``tokens`` of prompts one by one, 0 where a graph replays it.

    Nobody's first token is there sooner than its own pass was launched. Prompts of others hide their launches behind one another.

    A number or an array (plans,). Source: ``prompt_launch_s``, ``experts_launch_s`` and ``graph_tokens`` of ``spec_sheet.toml``.
    """
    numbers = machine.coefficients
    kernels_s = launched_kernels(work) * numbers.prompt_launch_s + work.expert_ffn_layers * numbers.experts_launch_s
    return np.where(machine.eager | (np.asarray(tokens) > numbers.graph_tokens), kernels_s, 0.0)


def launched_kernels(work: ModelWork) -> int:
    """Kernels that one pass launches."""
    return work.kernels + work.attention_kernels + work.expert_ffn_layers
