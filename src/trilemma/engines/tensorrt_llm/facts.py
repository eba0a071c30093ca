"""What one version of TensorRT-LLM does: defaults read from ``data/engines/tensorrt_llm.toml``, nothing computed."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.engines.facts import FactFile, Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorrtLlmFacts(Facts):
    """The facts in force for one version; ``known`` is False for one newer than all recorded or not given.

    ``backend`` is "tensorrt" where engines are built ahead, else "pytorch".
    """

    memory_fraction: float
    backend: str
    max_batch_size: int
    max_num_tokens: int
    block_size: int
    graph_batch: int
    vocab_padding: int


FACTS = FactFile("tensorrt_llm.toml", "TensorRT-LLM", TensorrtLlmFacts)
for_version = FACTS.for_version
