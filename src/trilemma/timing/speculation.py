"""Speculative decoding: tokens drafted cheaply, verified in one step; acceptance is an input, never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.timing.pass_time import PassTime


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """``drafted`` tokens proposed a step, of which the share ``acceptance`` is accepted, as engines print it.

    vLLM, SGLang and llama.cpp count accepted over drafted tokens, those behind a rejected one among the drafted; the chance
    of a draft whose predecessors were accepted is higher.

    ``layers`` is what a drafting pass runs: one layer of the target's kind and the output head (MTP modules, EAGLE heads).
    """

    drafted: int = 0
    acceptance: float = 0.0
    layers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.drafted <= 64:
            raise InputError(f"{self.drafted} drafted tokens a step is out of range; give 0 to 64")
        if not 0 <= self.acceptance <= 1:
            raise InputError(f"an acceptance of {self.acceptance} is out of range; give a share from 0 to 1")

    @property
    def verified(self) -> int:
        """Tokens of one sequence that pass through the model in a step."""
        return self.drafted + 1

    @property
    def tokens_per_step(self) -> float:
        """Tokens a step: what is accepted and one more from the verifying pass, ``1 + k · accepted / drafted``.

        Source: vllm/v1/spec_decode/metrics.py, mean acceptance length ``1 + num_accepted_tokens / num_drafts``.
        """
        return 1.0 + self.drafted * self.acceptance

    def drafting_s(self, step: PassTime, layers: int) -> Any:
        """Seconds of the drafting passes before one verifying step: each runs a share of the layers and the whole head.

        A drafting pass sees one token a sequence where the step sees ``verified``; weights bind both, so it is an upper
        bound at large batches.
        """
        if not self.drafted:
            return np.float64(0.0)
        lines = step.lines
        head_s = lines.get("lm_head", np.float64(0.0))
        body_s = step.total_s - head_s - lines.get("host", np.float64(0.0))
        return self.drafted * (body_s * self.layers / max(layers, 1) + head_s)
