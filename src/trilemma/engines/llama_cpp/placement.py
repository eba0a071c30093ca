"""Where llama.cpp puts each tensor: which layers go to the card, which experts stay on the host, which card holds what.

Sources: src/llama-model.cpp (get_layer_buft_list), common/arg.cpp (--n-cpu-moe, --override-tensor).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.foreign_words import unwarned
from trilemma.models.architecture import Model, Tensor
from trilemma.plans import ServeOptions
from trilemma.timing.host_weights import HostPart

#: Our roles → the names that llama.cpp gives tensors of a layer (src/llama-arch.cpp).
_NAMES = {
    "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v", "attention.o": "attn_output",
    "mla.q_a": "attn_q_a", "mla.q_b": "attn_q_b", "mla.kv_a": "attn_kv_a_mqa", "mla.kv_b": "attn_kv_b", "mla.o": "attn_output",
    "ffn.gate": "ffn_gate", "ffn.up": "ffn_up", "ffn.down": "ffn_down", "router": "ffn_gate_inp",
    "experts.gate": "ffn_gate_exps", "experts.up": "ffn_up_exps", "experts.down": "ffn_down_exps",
    "shared.gate": "ffn_gate_shexp", "shared.up": "ffn_up_shexp", "shared.down": "ffn_down_shexp",
}  # fmt: skip
#: Ways of loading that read a file into buffers which the card can copy from (src/llama-model-loader.cpp: no host buffer
#: where the file is mapped).
_UNMAPPED = ("none", "mlock", "dio")
_MOST_PATTERN = 300
#: Patterns that cannot run away: no group is repeated.
_SAFE = re.compile(r"[\w.\\|()\[\]*+?^$:\-]*")
_REPEATED_GROUP = re.compile(r"\)[*+{]")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """Bytes of each decoder layer: all of it, and the part that stays on the host whatever layers go to a card.

    ``head`` is the output matrix with the last norm (a copy of a tied embedding), ``embedding`` stays on the host,
    ``vision`` goes to the first card, ``draft`` (layers that draft) to the last.
    """

    layers: Any
    on_host: Any
    head: float
    embedding: float
    vision: float
    draft: float

    @classmethod
    def of(cls, model: Model, options: ServeOptions) -> LayerBytes:
        depth = len(model.layers)
        layers, on_host = np.zeros(depth), np.zeros(depth)
        head = embedding = vision = draft = 0.0
        keeps = _host_rule(options)
        for tensor in model.tensors:
            if tensor.part == "layers" and tensor.layer is not None and tensor.layer < depth:
                layers[tensor.layer] += tensor.bytes
                on_host[tensor.layer] += tensor.bytes if keeps(tensor) else 0.0
            elif tensor.part == "embedding":
                embedding += tensor.bytes
            elif tensor.part in ("head", "layers"):
                head += tensor.bytes
            elif tensor.part == "vision":
                vision += tensor.bytes
            elif tensor.part == "mtp":
                draft += tensor.bytes
        if model.tied_embeddings:
            head += embedding
        return cls(layers=layers, on_host=on_host, head=head, embedding=embedding, vision=vision, draft=draft)


def host_part(
    model: Model, options: ServeOptions, *, layers: int, micro_batch: int, offload_rows: int
) -> HostPart | None:
    """What each pass needs of the host: matrices of layers and tensors left there, attention where the cache lies there.

    ``layers`` of ``depth + 1`` are on cards. Unless the file is read into buffers (``--load-mode none``) weights are copied from
    mapped pages. None where nothing but the embedding is left.
    """
    depth, extra = len(model.layers), options.extra
    first = max(depth + 1 - layers, 0)
    keeps = _host_rule(options)
    held = {
        tensor.name
        for tensor in model.tensors
        if tensor.part == "layers" and tensor.layer is not None and len(tensor.shape) > 1
        and (tensor.layer < first or keeps(tensor))
    }  # fmt: skip
    if layers == 0:
        held |= {tensor.name for tensor in model.of_part("head") if len(tensor.shape) > 1}
        held |= {tensor.name for tensor in model.of_part("embedding") if model.tied_embeddings}
    caches = range(first) if extra.get("kv-offload", True) is not False else range(depth)
    if not held and not caches:
        return None
    return HostPart(
        tensors=frozenset(held),
        layers=frozenset(caches) & frozenset(range(depth)),
        offload_rows=float("inf") if extra.get("op-offload", True) is False else float(offload_rows),
        micro_batch=float(micro_batch),
        locked=extra.get("no-mmap") is True or extra.get("load-mode") in _UNMAPPED,
    )


def parts_of_cards(
    model: Model, options: ServeOptions, *, layers: int, ends: Sequence[float]
) -> tuple[tuple[frozenset[str], frozenset[int]], ...]:
    """(matrices, layers with attention and cache) of each card; what `host_part` leaves on the host is none's."""
    depth, keeps = len(model.layers), _host_rule(options)
    found = []
    for card in range(len(ends)):
        start, stop, head = layers_of_card(depth, layers, ends, card)
        held = {
            tensor.name
            for tensor in model.tensors
            if tensor.part == "layers"
            and len(tensor.shape) > 1
            and start <= _layer(tensor) < stop
            and not keeps(tensor)
        }
        if head:
            held |= {tensor.name for tensor in model.of_part("head") if len(tensor.shape) > 1}
            held |= {tensor.name for tensor in model.of_part("embedding") if model.tied_embeddings}
        on_card = options.extra.get("kv-offload", True) is not False
        found.append((frozenset(held), frozenset(range(start, stop)) if on_card else frozenset()))
    return tuple(found)


def _layer(tensor: Tensor) -> int:
    return -1 if tensor.layer is None else tensor.layer


def _host_rule(options: ServeOptions) -> Any:
    """Which tensors ``--cpu-moe``, ``--n-cpu-moe``, ``--n-cpu-ffn`` and ``--override-tensor …=CPU`` keep on the host."""
    extra = options.extra
    moe = float("inf") if extra.get("cpu-moe") else int(extra.get("n-cpu-moe") or 0)
    ffn = int(extra.get("n-cpu-ffn") or 0)
    patterns = _host_patterns(extra)

    def keeps(tensor: Tensor) -> bool:
        first = tensor.role.partition(".")[0]
        layer = tensor.layer if tensor.layer is not None else -1
        if first == "experts" and layer < moe:
            return True
        if first == "ffn" and layer < ffn:
            return True
        name = f"blk.{layer}.{_NAMES.get(tensor.role, tensor.role)}.weight"
        return any(pattern.search(name) for pattern in patterns)

    return keeps


def _host_patterns(extra: Mapping[str, Any]) -> list[re.Pattern[str]]:
    """The patterns of ``--override-tensor`` that send tensors to the host. Raises `InputError` for one that is not simple."""
    given = extra.get("override-tensor")
    texts = given if isinstance(given, (list, tuple)) else [given] if given else []
    found = []
    for text in (part for one in texts for part in str(one).split(",")):
        pattern, sign, place = text.rpartition("=")
        if not sign:
            raise InputError(f"--override-tensor {shorten(text)!r} is not PATTERN=BUFFER, such as exps=CPU")
        if not place.strip().upper().startswith(("CPU", "CUDA_HOST")):
            continue
        if len(pattern) > _MOST_PATTERN or _SAFE.fullmatch(pattern) is None or _REPEATED_GROUP.search(pattern):
            raise InputError(
                f"--override-tensor {shorten(pattern)!r} is too involved to follow; name tensors such as ffn_.*_exps"
            )
        try:
            with unwarned():
                found.append(re.compile(pattern))
        except re.error as error:
            raise InputError(f"--override-tensor {shorten(pattern)!r} is no pattern: {error}") from None
    return found


def splits(options: ServeOptions, free: Sequence[float]) -> list[float]:
    """Upper ends of the cards' shares: ``--tensor-split`` as given, else by the memory that is free. Raises `InputError`."""
    given = options.extra.get("tensor-split")
    cards = len(free)
    if given is None:
        shares = [max(one, 0.0) for one in free]
        if len(set(shares)) == 1:
            return [(index + 1) / cards for index in range(cards)]
        return [float(end) for end in np.cumsum(shares) / sum(shares)]
    try:
        shares = [float(part) for part in re.split(r"[,/]", str(given)) if part.strip()]
    except ValueError:
        raise InputError(f"--tensor-split {shorten(str(given))!r} is not a list of numbers such as 3,1") from None
    shares = [*shares, *([0.0] * (cards - len(shares)))][:cards]
    if not shares or sum(shares) <= 0 or min(shares) < 0 or not np.isfinite(sum(shares)):
        raise InputError(f"--tensor-split {shorten(str(given))!r} gives no card a share; use numbers such as 3,1")
    return [float(end) for end in np.cumsum(shares) / sum(shares)]


def layers_of_card(depth: int, on_cards: int, ends: Sequence[float], card: int) -> tuple[int, int, bool]:
    """(first layer, end, whether the output matrix is there) of ``card`` when ``on_cards`` of ``depth + 1`` layers go to cards.

    The output matrix counts as the layer after the last; the first ``depth + 1 − on_cards`` layers stay on the host.
    """
    start = max(depth + 1 - on_cards, 0)
    count = min(on_cards, depth + 1)
    below = ends[card - 1] if card else 0.0
    mine = [
        start + k
        for k in range(count)
        if below <= k / count < ends[card] or (card == len(ends) - 1 and k / count >= ends[card])
    ]
    if not mine:
        return start, start, False
    return mine[0], min(mine[-1] + 1, depth), mine[-1] == depth
