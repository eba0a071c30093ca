"""What each layer asks of vLLM's KV cache: the size of its pages on one rank and how many a request takes.

Bytes come from the cache laws of the model; blocks, windows and padding are the engine's, from
vllm/v1/kv_cache_interface.py (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MambaSpec)
and, for DeepSeek-V4, vllm/models/deepseek_v4 (attention.py, compressor.py) with backends/mla/sparse_swa.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.architecture import Layer
from trilemma.models.attention import Mixer
from trilemma.models.cache_law import CacheLaw
from trilemma.quantities import Numbers, ceil_div, round_up

PageRule = Literal["full", "window", "chunk", "state"]

#: DeepSeek-V4: pages are padded to multiples of these bytes; a page of the window holds these tokens.
_V4_ALIGNMENT, _V4_WINDOW_BLOCK = 576, 64
#: Tokens in a page of compressor states, by what they look back on.
_V4_STATE_BLOCKS = {8: 4, 128: 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """Layers that cache alike. ``block`` tokens to a page of ``page_bytes``; scalars or arrays (plans,).

    ``span`` is the window or chunk; ``held`` the pages of recurrent state that one request holds, ``everywhere`` whether
    one is kept at each block besides. ``parts`` are the page sizes of the caches of one compressed layer.
    """

    rule: PageRule
    layers: tuple[int, ...]
    block: Any
    page_bytes: Any
    span: int = 0
    held: int = 1
    everywhere: bool = False
    parts: tuple[float, ...] = ()

    def needed(self, *, tokens: Any, in_flight: Numbers, dcp: Numbers) -> Any:
        """Pages that one request of ``tokens`` takes while ``in_flight`` tokens are being scheduled."""
        match self.rule:
            case "full":
                return ceil_div(ceil_div(tokens, dcp), self.block)
            case "window":
                return ceil_div(np.minimum(self.span - 1 + np.asarray(in_flight), tokens), self.block) + 1
            case "chunk":
                return ceil_div(np.minimum(self.span + np.asarray(in_flight), tokens), self.block)
            case "state":
                blocks = ceil_div(tokens, self.block) if self.everywhere else np.zeros(np.shape(tokens), dtype=np.int64)
                return blocks + self.held


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRules:
    """The choices that shape pages, the same for every plan of a table.

    ``head_dim_of_latents``: latents are cached unpacked, a key and a value of so many elements for each head; 0: as latents.
    """

    kv: Format
    block: int
    latent_block: int
    compressed_block: int
    windows_kept: bool
    chunks_kept: bool
    head_dim_of_latents: int = 0
    draft_tokens: int = 0
    state_mode: Literal["none", "align", "all"] = "none"


def layer_pages(layers: Iterable[Layer], *, tp: Numbers, rules: PageRules) -> list[Pages]:
    """The kinds of pages that ``layers`` ask for, before page sizes are made equal; order of first use."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    mixers: dict[tuple[object, ...], Mixer] = {}
    for layer in layers:
        mixer = layer.mixer
        if mixer is None or mixer.borrows_cache or mixer.generates_nothing:
            continue
        key = (*mixer.cache_key, *_rule(mixer, rules))
        kinds.setdefault(key, []).append(layer.index)
        mixers.setdefault(key, mixer)
    found: list[Pages] = []
    for key, indices in kinds.items():
        mixer = mixers[key]
        laws = mixer.cache_laws(tp=tp, kv_format=rules.kv, speculative_tokens=rules.draft_tokens)
        match mixer.pages:
            case "parts":
                found += _compressed(laws, tuple(indices), rules)
            case "state":
                held = {"none": 1, "align": 2, "all": 0}[rules.state_mode] + rules.draft_tokens
                found.append(
                    Pages(rule="state", layers=tuple(indices), block=0, page_bytes=laws[0].fixed_bytes, held=held,
                          everywhere=rules.state_mode == "all")
                )  # fmt: skip
            case "rows":
                rule, span = _rule(mixer, rules)
                unpacked = mixer.is_latent and rules.head_dim_of_latents > 0
                block = rules.latent_block if mixer.is_latent and not unpacked else rules.block
                rate = _unpacked_bytes(mixer, tp, rules) if unpacked else _bytes_per_token(laws)
                page = block * rate
                found.append(Pages(rule=rule, layers=tuple(indices), block=block, page_bytes=page, span=span))
            case other:
                assert_never(other)
    return _merged(found)


def _bytes_per_token(laws: Iterable[CacheLaw]) -> Any:
    return sum(np.asarray(law.bytes_per_token) / law.stride for law in laws)


def _unpacked_bytes(mixer: Mixer, tp: Numbers, rules: PageRules) -> Any:
    """Bytes per token of keys and values of a rank's heads, where an engine caches these and not the latent they come from."""
    return ceil_div(mixer.heads, np.asarray(tp)) * 2 * rules.head_dim_of_latents * rules.kv.bits / 8


def _rule(mixer: Mixer, rules: PageRules) -> tuple[PageRule, int]:
    """How the tokens of a layer are kept, and how many where they are bounded."""
    match mixer.look_back:
        case ("window", span) if rules.windows_kept:
            return "window", span
        case ("chunk", span) if rules.chunks_kept:
            return "chunk", span
    return "full", 0


def _compressed(laws: Iterable[CacheLaw], layers: tuple[int, ...], rules: PageRules) -> list[Pages]:
    """Pages of one kind of DeepSeek-V4 layer: a window, latents and indexer keys of the whole length, compressor states."""
    whole: list[float] = []
    states: dict[int, list[float]] = {}
    found: list[Pages] = []
    for law in laws:
        rate = float(np.max(law.bytes_per_token))
        if law.window is None:
            whole.append(_padded(rules.compressed_block // law.stride * rate))
        elif law.kind == "window":
            found.append(_page("window", layers, _V4_WINDOW_BLOCK, [_padded(_V4_WINDOW_BLOCK * rate)], law.window))
        else:
            block = _V4_STATE_BLOCKS.get(law.window, 8)
            states.setdefault(law.window, []).append(_padded(block * rate))
    if whole:
        found.append(_page("full", layers, rules.compressed_block, whole, 0))
    found += [_page("window", layers, _V4_STATE_BLOCKS.get(span, 8), parts, span) for span, parts in states.items()]
    return found


def _page(rule: PageRule, layers: tuple[int, ...], block: int, parts: list[float], span: int) -> Pages:
    return Pages(rule=rule, layers=layers, block=block, page_bytes=sum(parts), span=span, parts=tuple(parts))


def _padded(n_bytes: float) -> float:
    return float(round_up(math.ceil(n_bytes), _V4_ALIGNMENT))


def _merged(kinds: list[Pages]) -> list[Pages]:
    """Join pages of compressed models that differ only in the layers they come from (every layer keeps a window)."""
    joined: dict[tuple[object, ...], Pages] = {}
    for index, kind in enumerate(kinds):
        key = (kind.rule, kind.block, kind.span, kind.parts) if kind.parts else (index,)
        old = joined.get(key)
        joined[key] = kind if old is None else replace(old, layers=tuple(sorted((*old.layers, *kind.layers))))
    return list(joined.values())
