"""The generation loop of Transformers, asked for a stated number of tokens again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """``make(n)`` generates n tokens greedily for every prompt of ``ids``, whatever the model says of an end."""

    model: Any
    ids: Any
    mask: Any

    def make(self, tokens: int) -> None:
        self.model.generate(
            self.ids,
            attention_mask=self.mask,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
