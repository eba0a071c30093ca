"""Bytes of the final norm, the logits and the loss: rows of a padded vocabulary, and the prices of three ways of losing."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.memory.activations import Shards
from trilemma.memory.output_layer import final_norm_bytes, logits_bytes


@pytest.mark.parametrize(
    ("tp", "rows"),
    # GPT-2's 50,257 tokens, made divisible by 128 times the ranks (Megatron-LM, --make-vocab-size-divisible-by).
    [(1, 50304), (2, 50432 / 2), (4, 50688 / 4), (8, 51200 / 8)],
)
def test_vocabularies_are_padded_to_a_multiple_for_every_rank(tp: int, rows: float) -> None:
    found = logits_bytes(
        50257, 1600, Shards(tokens=100, seq=100, tp=tp), loss="full", chunks=1, per_logit=12.0, kept_per_logit=2.0,
        vocab_multiple=128,
    )  # fmt: skip
    assert found == 100 * rows * 12


def test_a_vocabulary_that_no_rank_shares_is_whole() -> None:
    shards = Shards(tokens=10, seq=10, tp=4)
    given = {"loss": "full", "chunks": 1, "per_logit": 8.0, "kept_per_logit": 2.0}
    assert logits_bytes(1001, 64, shards, **given, vocab_parallel=False) == 10 * 1001 * 8  # type: ignore[arg-type]
    assert logits_bytes(1001, 64, shards, **given) == 10 * 251 * 8  # type: ignore[arg-type]


def test_chunks_keep_all_logits_narrow_and_one_piece_wide() -> None:
    shards = Shards(tokens=64, seq=64)
    given = {"loss": "chunked", "chunks": 8, "per_logit": 12.0, "kept_per_logit": 2.0}
    assert logits_bytes(1000, 64, shards, **given) == 64 * 1000 * (2 + 10 / 8)  # type: ignore[arg-type]
    assert logits_bytes(1000, 64, shards, **given, per_chunk_logit=6.0) == 64 * 1000 * (2 + 4 / 8)  # type: ignore[arg-type]


def test_a_loss_fused_with_its_matrix_works_in_pieces() -> None:
    # 1,000 tokens of 64 values over 4,000 logits: pieces of ⌈1000 · 64 / 4000⌉ = 16 rows, and the gradient in 32 bits.
    shards = Shards(tokens=np.array([1000, 8]), seq=1000)
    given = {"loss": "fused", "chunks": 1, "per_logit": 4.0, "kept_per_logit": 0.0}
    pieces = np.array([16, 1]) * 4000 * 4.0
    assert logits_bytes(4000, 64, shards, **given) == pytest.approx(pieces + 4000 * 64 * 4)  # type: ignore[arg-type]
    assert logits_bytes(4000, 64, shards, **given, trains_head=False) == pytest.approx(pieces)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sp", "cut"), [(True, 4), (False, 1)])
def test_the_last_norm_lies_along_the_sequence(sp: bool, cut: int) -> None:
    shards = Shards(tokens=100, seq=100, tp=4, sp=sp)
    # An eager norm keeps its input in 32 bits, its output and 4 bytes a row; a fused one its input; then the head's input.
    assert final_norm_bytes(64, shards, written=True, activation_bytes=2) == 100 * (64 * 6 + 4 + 128) / cut
    assert final_norm_bytes(64, shards, written=False, activation_bytes=2) == 100 * (128 + 4 + 128) / cut
