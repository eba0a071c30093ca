"""What llama-quantize stores each tensor as: a file type such as Q4_K_M names a mix, tensor by tensor and layer by layer.

Source: ggml-org/llama.cpp src/llama-quant.cpp (llama_tensor_get_type_impl); the rules stand in data/models/gguf_mixes.toml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import ExpertFfn, Model, Tensor

_NOT_QUANTISED = ("position", "token_type", "wpe.weight")
_KINDS = {
    "attention.q": "query", "attention.k": "key", "attention.v": "value", "attention.o": "output", "mla.o": "output",
}  # fmt: skip
_EIGHTY, _EIGHT = 80, 8
_DYNAMIC = "ud-"
_MOST = 300
_WORD = re.compile(r"[^a-z0-9]+")
_BITS = re.compile(r"(?:iq|tq|bq|q)(\d)")
_BY_BITS = {1: "iq1_m", 2: "q2_k", 3: "q3_k_m", 4: "q4_k_m", 5: "q5_k_m", 6: "q6_k", 8: "q8_0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufMix:
    """One file type: its own type, that of the output matrix, of the embedding where it differs, and exceptions in order.

    ``like`` names the mix that stands for a recipe which nobody published.
    """

    name: str
    type: str
    head: str
    embedding: str
    names: tuple[str, ...]
    rules: tuple[Mapping[str, Any], ...]
    like: str = ""

    def formats(self, model: Model) -> Callable[[Tensor], Format | None]:
        """How this mix stores a tensor of ``model``: a function of the tensor, None for what another file holds (vision).

        Vectors and routers are FP32 (convert_hf_to_gguf.py)."""
        shape = _Shape.of(model)

        def stored(tensor: Tensor) -> Format | None:
            if tensor.part == "vision":
                return None
            if not _quantised(tensor):
                return catalogue.get("fp32")
            return _fitting(self._type(tensor, shape), tensor.shape[-1])

        return stored

    def _type(self, tensor: Tensor, shape: _Shape) -> str:
        if tensor.role == "head" or (tensor.role == "embedding" and shape.tied):
            return self.head
        if tensor.role == "embedding":
            return self.embedding
        kind = _kind(tensor)
        found = self.type
        for rule in self.rules:
            if _is_meant(rule["tensors"], kind, tensor) and shape.gqa >= rule.get("gqa", 0):
                at, count = shape.place(tensor, kind)
                if _WHERE[rule["where"]](at, count):
                    found = rule["type"]
                    break
        if self.name.startswith(_DYNAMIC) and shape.recurrent and _is_kept(tensor, shape):
            kept = str(_document()["dynamic"]["recurrent"])
            found = max(found, kept, key=lambda name: catalogue.get(name).bits)
        return _special(found, kind, shape)


def mixes() -> tuple[GgufMix, ...]:
    """Every mix, in the order of the data file; each is also the nearest of one publisher's dynamic recipe of that name."""
    rows: Mapping[str, Mapping[str, Any]] = _document()["mixes"]
    dynamic = {
        f"ud-{name}": {"like": name, "names": [f"ud-{one}" for one in row.get("names", ())]}
        for name, row in rows.items()
        if not name.startswith(_DYNAMIC) and f"{_DYNAMIC}{name}" not in rows and "like" not in row
    }
    return tuple(_mix(name, row) for name, row in {**rows, **dynamic}.items())


def _mix(name: str, row: Mapping[str, Any]) -> GgufMix:
    like = str(row.get("like", ""))
    rules = _document()["mixes"][like] if like else row
    return GgufMix(
        name=name,
        type=rules["type"],
        head=row.get("head", rules["head"]),
        embedding=row.get("embedding", rules.get("embedding", rules["type"])),
        names=tuple(row.get("names", ())),
        rules=tuple(rules.get("rules", ())),
        like=like,
    )


def nearest(name: str) -> str | None:
    """The recipe that stands for a type which ``name`` states in no known spelling (``IQ5_KS``, ``Q4_0_R8``): that of as many
    bits. None where no word states bits."""
    words = [found for word in _WORD.split(name[:_MOST].lower()) if (found := _BITS.fullmatch(word))]
    mix = _BY_BITS.get(int(words[-1].group(1))) if words else None
    return None if mix is None else f"ud-{mix}"


def source() -> str:
    """Where the rules were read."""
    return str(_document()["source"])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """What the rules ask of a model: depth, layers with values, query heads per KV head, experts, tied embeddings, recurrent
    layers."""

    depth: int
    valued: Mapping[int | None, int]
    gqa: float
    experts: int
    tied: bool
    recurrent: bool

    @classmethod
    def of(cls, model: Model) -> _Shape:
        valued = sorted({t.layer for t in model.tensors if t.part == "layers" and _kind(t) == "value"}, key=_order)
        experts = [layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, ExpertFfn)]
        return cls(
            depth=len(model.layers),
            valued={layer: at for at, layer in enumerate(valued)},
            gqa=max((mixer.heads / mixer.cache_heads for mixer in model.mixers if mixer.cache_heads), default=1.0),
            experts=max(experts, default=0),
            tied=model.tied_embeddings,
            recurrent=any(mixer.keeps_state for mixer in model.mixers),
        )

    def place(self, tensor: Tensor, kind: str) -> tuple[int, int]:
        """(which of how many): values count among layers that have them, everything else by layer."""
        if kind == "value":
            return self.valued.get(tensor.layer, len(self.valued)), len(self.valued)
        return _order(tensor.layer), self.depth


def _order(layer: int | None) -> int:
    return -1 if layer is None else layer


def _more_bits(at: int, count: int) -> bool:
    return at < count // 8 or at >= 7 * count // 8 or (at - count // 8) % 3 == 2


#: Layers meant by a word: a test of (which, of how many).
_WHERE: Mapping[str, Callable[[int, int], bool]] = {
    "all": lambda _at, _count: True,
    "more bits": _more_bits,
    "first eighth": lambda at, count: at < count // 8,
    "first sixteenth": lambda at, count: at < count // 16,
    "first four": lambda at, _count: at < 4,
    "first two": lambda at, _count: at < 2,
}


def _kind(tensor: Tensor) -> str:
    """query, key, value, output, down or "": fused q, k and v of recurrent layers count as values."""
    if tensor.role == "recurrent.in" and "in_proj_qkv" in tensor.name:
        return "value"
    return _KINDS.get(tensor.role) or ("down" if tensor.role.endswith(".down") else "")


def _is_meant(wanted: tuple[str, ...], kind: str, tensor: Tensor) -> bool:
    return kind in wanted or (tensor.experts > 0 and "experts" in wanted)


def _is_kept(tensor: Tensor, shape: _Shape) -> bool:
    """What a dynamic recipe keeps of a model with recurrent layers: their outputs, in mixtures all but routed experts."""
    return tensor.role == "recurrent.out" or (shape.experts > 0 and tensor.part == "layers" and not tensor.experts)


def _quantised(tensor: Tensor) -> bool:
    """Positions and types of tokens stay as they are (src/llama-quant.cpp, tensor_allows_quantization)."""
    if tensor.role == "embedding" and any(word in tensor.name for word in _NOT_QUANTISED):
        return False
    return len(tensor.shape) > 1 and tensor.role not in ("router", "recurrent.conv")


def published_mix(method: str) -> str | None:
    """The mix in which checkpoints of a quantisation ``method`` are published as GGUF; None where there is no usual one."""
    found = _document()["published"].get(method)
    return None if found is None else str(found)


def _special(found: str, kind: str, shape: _Shape) -> str:
    rules = _document()["special"]
    if shape.depth == _EIGHTY and not shape.experts and kind == "value" and found in rules["eighty_layers"]["lifts"]:
        return str(rules["eighty_layers"]["value"])
    if shape.experts == _EIGHT:
        eight = rules["eight_experts"]
        if kind in ("value", "key"):
            return str(eight[kind])
        if kind == "output" and found in eight["output_lifts"]:
            return str(eight["output"])
    return found


def fallbacks() -> Mapping[str, str]:
    """Block format → the one that llama.cpp takes where rows are no whole blocks of it."""
    return dict(_document()["fallbacks"])


def _fitting(name: str, row: int) -> Format:
    """``name``, or what llama.cpp falls back to where rows of ``row`` are no whole blocks of it."""
    wanted = catalogue.get(name)
    if not wanted.group:
        return wanted
    if row % wanted.group and name in fallbacks():
        wanted = catalogue.get(fallbacks()[name])
    return catalogue.get("fp16") if row % wanted.group else wanted


@cache
def _document() -> dict[str, Any]:
    return read_data("models/gguf_mixes.toml")
