"""Small Transformers models: one in which only Python and the dispatch of kernels take time, and one of plain layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from trilemma.measuring.device import FORMATS, Device

#: Tokens that one call generates.
TOKENS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSizes:
    """Sizes of a Llama layer, and the batch of sequences that its training step takes."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    seq: int
    batch: int

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads

    @property
    def weights(self) -> float:
        """Elements of the layer's matrices."""
        return self.hidden * (2.0 * self.hidden + 2.0 * self.kv_heads * self.head_width + 3.0 * self.inner)


TINY = LayerSizes(hidden=32, inner=64, heads=2, kv_heads=1, seq=8, batch=1)
PLAIN = LayerSizes(hidden=1024, inner=3072, heads=16, kv_heads=8, seq=256, batch=2)


def _model(device: Device, fmt: str, layers: int, layer: LayerSizes) -> Any:
    transformers.logging.set_verbosity_error()
    device_type: Any = device.place
    config = transformers.LlamaConfig(
        hidden_size=layer.hidden, intermediate_size=layer.inner, num_attention_heads=layer.heads, vocab_size=64,
        num_key_value_heads=layer.kv_heads, num_hidden_layers=layers, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(device_type, getattr(torch, FORMATS[fmt]))


def generation(device: Device, fmt: str, layers: int, layer: LayerSizes = TINY) -> Callable[[], object]:
    model = _model(device, fmt, layers, layer).eval()
    ids = torch.ones((1, 4), dtype=torch.long, device=device.place)
    mask = torch.ones_like(ids)
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(ids, attention_mask=mask, **options)


def training_step(device: Device, fmt: str, layers: int, layer: LayerSizes = TINY) -> Callable[[], object]:
    model = _model(device, fmt, layers, layer).train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.ones((layer.batch, layer.seq), dtype=torch.long, device=device.place)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
