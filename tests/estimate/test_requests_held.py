"""How many requests of a load one engine holds, whatever context it was told."""

from __future__ import annotations

import trilemma as tl


def test_a_command_without_a_context_holds_requests_of_the_load() -> None:
    """SGLang's pool of 412,509 tokens holds two hundred requests of 2,000, not the three of the model's 131,072."""
    found = tl.check(
        "sglang serve --model-path meta-llama/Llama-3.1-8B", gpu="h100-sxm", isl=1000, osl=1000, concurrency=64
    )
    speed = found.to_dict()["speed"]
    assert found.bottleneck is not None
    assert found.bottleneck.resource != "capacity"
    assert speed["ttft_ms"]["value"] < 2000


def test_speed_says_what_it_assumes() -> None:
    """Filtered sampling was asked for; greedy sampling was not, and every rate stands on it."""

    def assumed(**load: object) -> list[str]:
        answer = tl.fit("qwen3-8b", "h100-sxm", **load)
        return [one.message for one in answer.warnings if one.code == "assumed-load"]

    asked = {"isl": 1000, "osl": 100, "concurrency": 4}
    assert assumed(**asked) == ["speed assumes greedy sampling"]
    assert assumed(**asked, sampling="filtered") == []
    lengths = "prompts of 1,024 and outputs of 1,024 tokens"
    assert assumed() == [f"speed assumes {lengths}, 32 requests at once and greedy sampling"]
    assert assumed(concurrency=4, sampling="penalized") == [f"speed assumes {lengths}"]
