"""A remedy that changes no weights runs the files that the command named."""

from __future__ import annotations

import pytest

import trilemma as tl


@pytest.mark.parametrize("word", ["/models/Qwen3-14B-Q4_K_M.gguf", "C:/ai/Qwen3-14B-Q4_K_M.gguf"])
def test_options_changed_keep_the_weights_file(word: str) -> None:
    said = tl.check(["llama-server", "-m", word, "-c", "16384", "-ngl", "99"], gpu="rtx-4060")
    assert said.remedies
    assert all(word in one.flags for one in said.remedies if one.flags.startswith("llama-server"))


def test_other_weights_are_named_by_their_own_checkpoint() -> None:
    said = tl.check(["vllm", "serve", "/data/models/Qwen3-32B"], gpu="l40s")
    assert all("/data/models" not in one.flags for one in said.remedies if "checkpoint" in one.change)
