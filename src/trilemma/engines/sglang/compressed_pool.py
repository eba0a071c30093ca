"""SGLang's pool of compressed attention: windows and compressor states go by tokens of the pool, not by requests.

Source: python/sglang/srt/model_executor/pool_configurator.py, DSV4PoolConfigurator (_get_bytes_per_full_token,
_get_c128_state_fixed_bytes), with deepseek_v4_memory_pool.py, get_compress_state_ring_size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.sglang.facts import SglangFacts
from trilemma.formats.formats import Format
from trilemma.models.architecture import Layer
from trilemma.models.attention import Mixer
from trilemma.models.cache_law import CacheLaw
from trilemma.plans import ServeOptions
from trilemma.quantities import Numbers, round_up

#: Rows of states are padded to whole multiples of these.
_ROWS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedPool:
    """``window_ratio`` tokens of windows for each of the pool; states of compressors from ``by_request`` tokens of stride on are
    kept for ``requests`` requests (0: all by tokens). Drafting doubles the rings of states.
    """

    window_ratio: float
    by_request: int
    requests: Numbers
    drafting: bool

    def token_bytes(self, mixer: Mixer, *, tp: Numbers, kv: Format) -> Any:
        """Bytes of one layer for each token of the pool: what grows, and the shares of windows and states."""
        laws = mixer.cache_laws(tp=tp, kv_format=kv)
        window = next(law.window for law in laws if law.kind == "window") or 1
        found: Any = 0.0
        for law in laws:
            rate = np.asarray(law.bytes_per_token, dtype=float)
            if law.window is None:
                found = found + rate / law.stride
            elif law.kind == "window":
                found = found + self.window_ratio * rate
            elif not self._is_by_request(law):
                found = found + self.window_ratio * self._ring(law) / window * rate
        return found

    def request_bytes(self, mixer: Mixer, *, tp: Numbers, kv: Format) -> Any:
        """Bytes of one layer's states that are kept by request, one slot and one ring to spare."""
        found: Any = 0.0
        for law in mixer.cache_laws(tp=tp, kv_format=kv):
            if law.kind == "compressor" and self._is_by_request(law):
                rows = (np.asarray(self.requests) + 2) * self._ring(law) + 1
                found = found + round_up(rows, _ROWS) * np.asarray(law.bytes_per_token, dtype=float)
        return found

    def _ring(self, law: CacheLaw) -> int:
        return (law.window or 0) * (2 if self.drafting else 1)

    def _is_by_request(self, law: CacheLaw) -> bool:
        return bool(self.by_request) and (law.window or 0) >= self.by_request


def compressed_pool(
    options: ServeOptions, facts: SglangFacts, *, replicas: Numbers, drafting: bool, by_request: bool = True
) -> CompressedPool:
    """The rule in force; ``replicas`` of attention share the requests. ``by_request`` False: the rule of older versions."""
    rule = facts.compressed_pool
    requests = rule["requests"] if options.max_seqs is None else options.max_seqs
    return CompressedPool(
        window_ratio=float(options.extra.get("swa-full-tokens-ratio") or rule["window_ratio"]),
        by_request=rule["by_request"] if by_request else 0,
        requests=np.asarray(requests) // np.asarray(replicas),
        drafting=drafting,
    )


def layer_bytes(
    layers: Sequence[Layer], pool: CompressedPool, *, tp: Numbers, kv: Format, drafting_from: int
) -> tuple[list[Any], list[Any]]:
    """(bytes a token, bytes by request) of each layer; those from ``drafting_from`` on draft and are counted as one more layer
    of the average kind by the engine: `with_drafts`."""
    known: dict[Mixer, tuple[Any, Any]] = {}
    tokens: list[Any] = []
    requests: list[Any] = []
    for place, layer in enumerate(layers):
        mixer = layer.mixer
        if mixer is None or not mixer.is_compressed or place >= drafting_from:
            tokens.append(0.0)
            requests.append(0.0)
            continue
        if mixer not in known:
            known[mixer] = pool.token_bytes(mixer, tp=tp, kv=kv), pool.request_bytes(mixer, tp=tp, kv=kv)
        tokens.append(known[mixer][0])
        requests.append(known[mixer][1])
    return tokens, requests


def with_drafts(token_bytes: Any, layers: Any, *, drafting: bool) -> Any:
    """The engine makes room for a draft worker by one more layer of the average size."""
    return token_bytes * (layers + 1) / np.maximum(layers, 1) if drafting else token_bytes
