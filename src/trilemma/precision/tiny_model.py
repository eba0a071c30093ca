"""The tiny language model that ships with the package: real weights, trained from text the project may ship, offline.

It reads and writes bytes, is shaped like Llama (grouped-query attention, gated feed-forward, untied head), and its
feed-forward width is no multiple of 64 or 128, so that groups at the end of a row are short. `train` makes it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.data.digest import DATA
from trilemma.precision.decoder_shape import DecoderShape
from trilemma.precision.tokens import byte_signs

#: Folder of the shipped model: config.json, model.safetensors, tokenizer.json, held_out.txt.
FOLDER = DATA / "precision" / "tiny_model"
_STEPS, _BATCH, _CONTEXT, _SEED = 1500, 8, 192, 2026
_PEAK_RATE, _WARM_UP = 3e-3, 50


def tiny_shape() -> DecoderShape:
    """Sizes of the tiny model."""
    return DecoderShape(
        family="llama", hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate=352, vocab=256,
        max_positions=512,
    )  # fmt: skip


def train(text: str, *, steps: int = _STEPS, report: Any = None) -> dict[str, Any]:
    """Weights (name → torch BF16 tensor) trained on ``text`` with AdamW and a cosine schedule; the last tenth is left out.

    The same text and PyTorch build give the same weights. ``report(step, loss)`` is called now and then.
    """
    import torch
    from torch.nn import functional

    from trilemma.precision.decoder import apply_head, apply_layer, rotations

    shape = tiny_shape()
    generator = torch.Generator().manual_seed(_SEED)
    weights = {name: _initial(name, size, shape, generator) for name, size in shape.tensors().items()}
    ids = torch.from_numpy(np.frombuffer(training_part(text).encode("utf-8"), np.uint8).astype(np.int64))
    matrices = [value for value in weights.values() if value.ndim > 1]
    gains = [value for value in weights.values() if value.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    layers = [_of_layer(weights, index) for index in range(shape.layers)]
    rotation = rotations(shape, _CONTEXT)
    for step in range(steps):
        warm = min(1.0, (step + 1) / _WARM_UP)
        for group in optimizer.param_groups:
            group["lr"] = _PEAK_RATE * warm * (0.02 + 0.49 * (1 + np.cos(np.pi * step / steps)))
        starts = torch.randint(len(ids) - _CONTEXT - 1, (_BATCH,), generator=generator)
        window = torch.stack([ids[start : start + _CONTEXT + 1] for start in starts.tolist()])
        x = functional.embedding(window[:, :-1], weights["model.embed_tokens.weight"])
        for layer in layers:
            x = apply_layer(x, layer, shape, rotation)
        logits = apply_head(x, weights["model.norm.weight"], weights["lm_head.weight"], shape)
        loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        if report is not None and (step % 100 == 0 or step == steps - 1):
            report(step, loss.item())
    return {name: value.detach().to(torch.bfloat16) for name, value in weights.items()}


def training_part(text: str) -> str:
    """What of a text is trained on; the rest is for measurements."""
    return text[: int(len(text) * 0.9)]


def config() -> dict[str, Any]:
    """The config.json of the tiny model, as Transformers reads it."""
    shape = tiny_shape()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 10,
        "eos_token_id": 10,
    }


def tokenizer() -> dict[str, Any]:
    """The tokenizer.json of the tiny model: one token for each byte."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {sign: byte for byte, sign in enumerate(byte_signs())},
            "merges": [],
        },
    }


def save(folder: Path, weights: dict[str, Any], *, held_out: str) -> None:
    """Write the model, its tokenizer and text that it was not trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(), indent=1) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "held_out.txt").write_text(held_out, encoding="utf-8")
    _write_safetensors(folder / "model.safetensors", weights)


def _write_safetensors(path: Path, weights: dict[str, Any]) -> None:
    import torch

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, value in weights.items():
        size = 2 * value.numel()
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for value in weights.values():
            stream.write(value.contiguous().view(torch.int16).numpy().astype("<i2").tobytes())


def _of_layer(weights: dict[str, Any], index: int) -> dict[str, Any]:
    prefix = f"model.layers.{index}."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _initial(name: str, size: tuple[int, ...], shape: DecoderShape, generator: Any) -> Any:
    import torch

    if len(size) == 1:
        return torch.ones(size, requires_grad=True)
    std = 0.04 / np.sqrt(2 * shape.layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.04
    return (torch.randn(size, generator=generator) * std).requires_grad_()
