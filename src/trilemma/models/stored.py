"""Tensors as weight files hold them, laid over the model that a configuration describes.

Files are exact where a configuration is a promise: scales, zero points, mixed types and tensors that nobody mentioned.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Layer, Model, ModelPart, Tensor
from trilemma.models.quantized.patterns import canonical

#: No checkpoint has more tensors; DeepSeek-V3 has 91,991.
MAX_TENSORS = 2_000_000
_MAX_LAYERS = 4096
#: Endings of what quantisation toolkits store beside a weight. All of it belongs to the module.
_SIDE = re.compile(
    r"\.(weight|qweight|qzeros|scales|g_idx|weight_packed|weight_scale(_inv|_2)?|weight_shape|weight_zero_point"
    r"|weight_g_idx|weight_global_scale|input_scale|input_global_scale|SCB|absmax|quant_map|nested_absmax|nested_quant_map"
    r"|quant_state\..*|scale|blocks|k_scale|v_scale|weight\.(absmax|quant_map|nested_.*|quant_state\..*))$"
)
_EXPERT = re.compile(r"\.experts\.\d+\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_TOWER = re.compile(
    r"(^|\.)(visual|vision|vision_tower|vision_model|audio|audio_tower|multi_modal_projector|mm_projector|v|mm)\."
)


#: The part of a model and, inside the decoder, the layer: what is shared in proportion stays within one.
_Group: TypeAlias = tuple[ModelPart, int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """One tensor of a weight file. ``role`` is the model's word for it where the file format has names of its own."""

    name: str
    shape: tuple[int, ...]
    format: Format
    n_bytes: int
    role: str | None = None


def owner(name: str) -> str:
    """The module that a stored tensor belongs to, experts of a layer taken together; a bias stands for itself."""
    module = name
    while True:
        shorter = _SIDE.sub("", module)
        if shorter == module:
            break
        module = shorter
    return _EXPERT.sub(".experts.0.", canonical(module))


def layer_of(name: str) -> int | None:
    """The layer number in a tensor's name; None for tensors outside layers and for towers."""
    if _TOWER.search(name):
        return None
    found = _LAYER.search(name)
    return int(found.group(1)) if found and len(found.group(1)) < 6 else None


def lay_over(model: Model, stored: Sequence[StoredTensor], *, source: str) -> Model:
    """``model`` with the bytes that ``stored`` (every tensor of the checkpoint) holds.

    Modules found by name, or by role within a layer, take their exact bytes. What is left over of a layer on both sides is
    the same weights under other names (fused, split) and shares the bytes in proportion; what only the files have is added,
    what only the configuration has is dropped. The total is that of the files. A tied output matrix stays absent.
    """
    found: dict[object, list[StoredTensor]] = defaultdict(list)
    for piece in stored:
        found[(layer_of(piece.name), piece.role) if piece.role else owner(piece.name)].append(piece)
    exact: list[Tensor] = []
    waiting: dict[_Group, list[Tensor]] = defaultdict(list)
    for tensor in model.tensors:
        key = next((key for key in (owner(tensor.name), (tensor.layer, tensor.role)) if key in found), None)
        if key is None:
            waiting[_group(tensor)].append(tensor)
        else:
            exact.append(_with_bytes(tensor, found.pop(key)))
    left: dict[_Group, list[StoredTensor]] = defaultdict(list)
    for unused in found.values():
        for piece in unused:
            part = _part(piece, len(model.layers))
            left[part, layer_of(piece.name) if part == "layers" else None].append(piece)
    dropped = 0
    for group, tensors in waiting.items():
        pieces = left.pop(group, [])
        if pieces:
            exact += _in_proportion(tensors, pieces)
        else:
            dropped += len(tensors)
    added = [_unmentioned(piece, model) for pieces in left.values() for piece in pieces]
    if model.tied_embeddings:
        added = [tensor for tensor in added if tensor.role != "head"]
    notes = list(model.assumptions)
    if dropped:
        notes.append(f"{dropped} tensors of the configuration are in no weight file and are left out")
    if added:
        notes.append(
            f"{len(added)} tensors of the weight files are not in the configuration and are counted whole on every rank"
        )
    return replace(model, tensors=tuple(exact + added), source=source, assumptions=tuple(notes))


def model_of_tensors(stored: Sequence[StoredTensor], *, name: str, source: str) -> Model:
    """A model known from its weight files alone: exact bytes and counts; attention and experts are named as unknown.

    Raises `InputError` when no tensor looks like a token embedding.
    """
    embedding = next((tensor for tensor in stored if _is_embedding(tensor)), None)
    if embedding is None:
        raise InputError(
            f"{name[:80]} has no token embedding among its tensors; give the config.json beside its weights"
        )
    numbers = [number for number in (layer_of(tensor.name) for tensor in stored) if number is not None]
    layers = min(max(numbers, default=-1) + 1, _MAX_LAYERS)
    bare = Model(
        name=name,
        family="unknown",
        hidden=embedding.shape[-1],
        vocab=embedding.shape[0],
        max_positions=None,
        layers=tuple(Layer(index=index, mixer=None, ffn=None) for index in range(layers)),
        dtype=_common_format(stored),
        tied_embeddings=not any(_part(tensor, layers) == "head" and len(tensor.shape) > 1 for tensor in stored),
        tensors=(),
        unknown_fields=("attention", "cache", "context length", "active parameters"),
        assumptions=("no config.json beside the weights: sizes are exact, the cache is not known",),
        source=source,
    )
    return replace(bare, tensors=tuple(_unmentioned(tensor, bare) for tensor in stored))


def _group(tensor: Tensor) -> _Group:
    return tensor.part, tensor.layer if tensor.part == "layers" else None


def _with_bytes(tensor: Tensor, pieces: Sequence[StoredTensor]) -> Tensor:
    total = sum(piece.n_bytes for piece in pieces)
    if total == tensor.bytes:
        return tensor
    largest = max(pieces, key=lambda piece: piece.n_bytes).format
    if largest.storage_bytes(tensor.shape) == total:
        return replace(tensor, format=largest)
    return replace(tensor, format=_measured(tensor, total, largest.name))


def _in_proportion(tensors: Sequence[Tensor], pieces: Iterable[StoredTensor]) -> list[Tensor]:
    total = sum(piece.n_bytes for piece in pieces)
    promised = sum(tensor.bytes for tensor in tensors)
    shares: list[Tensor] = []
    given = passed = 0
    for tensor in tensors:
        passed += tensor.bytes
        share = total * passed // promised - given
        given += share
        shares.append(tensor if share == tensor.bytes else replace(tensor, format=_measured(tensor, share, "")))
    return shares


def _measured(tensor: Tensor, n_bytes: int, stored_as: str) -> Format:
    """A format of which only the bytes in this tensor are known."""
    rows = tensor.elements // tensor.shape[-1] if tensor.shape else 1
    name = stored_as if stored_as and not stored_as.startswith(("int32", "uint8")) else tensor.format.name
    bits = max(8 * n_bytes / tensor.elements, 1e-9)
    if tensor.shape and n_bytes and n_bytes % rows == 0:
        return Format(
            name=name,
            bits=bits,
            kind="packed",
            granularity="group",
            group=tensor.shape[-1],
            block_bytes=n_bytes // rows,
        )
    return Format(name=name, bits=bits, kind="packed")


def _unmentioned(piece: StoredTensor, model: Model) -> Tensor:
    part = _part(piece, len(model.layers))
    layer = layer_of(piece.name) if part in ("layers", "mtp") else None
    role = {"embedding": "embedding", "head": "head" if len(piece.shape) > 1 else "norm"}.get(part, "other")
    shape = piece.shape or (1,)
    tensor = Tensor(name=piece.name, role=role, shape=shape, format=piece.format, part=part, layer=layer)
    return (
        tensor
        if tensor.bytes == piece.n_bytes
        else replace(tensor, format=_measured(tensor, piece.n_bytes, piece.format.name))
    )


def _part(piece: StoredTensor, layers: int) -> ModelPart:
    name = piece.name
    if _TOWER.search(name):
        return "vision"
    layer = layer_of(name)
    if layer is not None:
        return "mtp" if layer >= layers or ".mtp." in f".{name}" else "layers"
    if _is_embedding(piece):
        return "embedding"
    return "mtp" if ".mtp." in f".{name}" else "head"


def _is_embedding(piece: StoredTensor) -> bool:
    ends = (
        "embed_tokens.weight",
        "wte.weight",
        "token_embd.weight",
        "word_embeddings.weight",
        "embed_in.weight",
        "tok_embeddings.weight",
    )
    return len(piece.shape) == 2 and piece.name.endswith((*ends, "embed.weight"))


def _common_format(stored: Sequence[StoredTensor]) -> Format:
    """The 16- or 32-bit float that most elements outside packed tensors have; bf16 where there is none."""
    sizes: Counter[str] = Counter()
    for tensor in stored:
        if tensor.format.name in ("bf16", "fp16", "fp32"):
            sizes[tensor.format.name] += math.prod(tensor.shape)
    return catalogue.get(sizes.most_common(1)[0][0] if sizes else "bf16")
