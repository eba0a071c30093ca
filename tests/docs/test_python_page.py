"""The examples of docs/python.md run one after the other, and what their comments promise holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import trilemma

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_examples_run_in_order() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["answer"].question.plan.pool.layout.tp == 2
    assert names["best"].command.startswith("vllm serve ")
    assert not names["failing"].fits
    assert names["failing"].remedies
    assert names["first"].fits


def test_every_question_and_noun_that_is_named_is_exported() -> None:
    named = set(re.findall(r"\btl\.(\w+)", PAGE.read_text(encoding="utf-8")))
    assert named <= set(trilemma.__all__)
    assert {"fit", "check", "plan", "train", "compare", "upgrade"} <= named
