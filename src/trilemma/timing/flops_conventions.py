"""Model FLOPs per trained token under named conventions: what a printed TFLOP/s or MFU divides by time.

The same run differs by 4 to 13 % at a context of 8K between conventions, more beyond. A figure without a name is not a figure.
"""

from __future__ import annotations

from typing import Literal, get_args

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.timing.attention import prefill_work
from trilemma.timing.training_operators import TrainingWork

#: ``causal``: attention halved for the causal mask, no embedding look-up, output matrix counted (Megatron-LM since 2025,
#: Megatron-Bridge). ``full``: attention not halved (PaLM, Chowdhery et al. 2022; Megatron-LM to 2024, NeMo 24, torchtitan).
#: ``full-embedding``: and the embedding counted as weights (llm-foundry, 6N). ``hardware``: full attention, with the forward
#: pass of full recompute (Narayanan et al. 2021, equation 3). ``weights``: 6 per active weight, attention left out.
Convention = Literal["causal", "full", "full-embedding", "hardware", "weights"]
CONVENTIONS: tuple[str, ...] = get_args(Convention)


def attention_flops_per_token(work: TrainingWork, seq: int, *, causal: bool) -> float:
    """FLOPs of scores and values for one token in one forward pass, mean over a sequence of ``seq`` tokens.

    Windows and chunks are honoured where causal attention is; without the mask everyone sees everything.

    A scalar. Source: PaLM (Chowdhery et al. 2022), appendix B, counts ``12·L·H·Q·T`` without the mask, forward and
    backward.
    """
    fmt = catalogue.get("bf16")
    total = 0.0
    for mixer, count in work.mixers:
        if causal:
            one = float(prefill_work(mixer, tokens=seq, cached=0, tp=1, kv_format=fmt).flops) / seq
        else:
            one = mixer.unmasked_flops(seq)
        total += count * one
    return total


def model_flops_per_token(
    work: TrainingWork, seq: int, convention: str = "causal", *, trains_adapters: bool = False, tied: bool = False
) -> float:
    """FLOPs of forward and backward for one token: 6 per active weight (4 where weights are frozen and only adapters train)
    and three times the attention of a forward pass.

    Raises `InputError` for an unknown convention.

    A scalar. Source: Kaplan et al. 2020, section 2.1 (6 per weight); PaLM (Chowdhery et al. 2022), appendix B.
    """
    if convention not in CONVENTIONS:
        raise InputError(f"FLOP convention {shorten(convention)!r} is not known; use {', '.join(CONVENTIONS)}")
    passes = 2 if trains_adapters else 3
    weights = work.active_elements
    if convention == "full-embedding" and not tied:
        weights += work.embedding_elements
    if convention == "weights":
        return 2.0 * passes * weights
    attention = attention_flops_per_token(work, seq, causal=convention == "causal")
    if convention == "hardware":
        decoder = weights - work.heads * work.head_elements
        return 8.0 * decoder + 6.0 * work.heads * work.head_elements + 4.0 * attention
    return 2.0 * passes * weights + passes * attention
