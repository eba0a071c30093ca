"""Every engine that serves is planned for, on cards that it runs on, with commands that it takes."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.engines.traits import every


@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize(
    "engine", ["ollama", "lm-studio", "mlx-lm", "lmdeploy", "llama.cpp", "transformers-serve", "sglang"]
)
def test_the_first_plan_reads_back(engine: str, cards: int) -> None:
    card = "m4-max-64gb" if every()[engine].vendors == ("Apple",) else "rtx-4090"
    found = tl.plan("qwen3-8b", f"{card}:{cards}", engine=engine, isl=512, osl=128)
    command = found.plans[0].command
    if every()[engine].splits == "layers":
        assert all(one.question.plan.pool.layout.tp == 1 for one in found.plans)
    if engine != "ollama":  # a published checkpoint is none of its library's
        assert tl.check(command, gpu=f"{card}:1" if cards == 1 else f"{card}:{cards}").to_dict()["verdict"]
