"""A decoder run layer by layer from disk with weights, activations and cache in any number format, emulated exactly.

What is emulated is the arithmetic of formats (codes, scales, rounding), not that of kernels: products accumulate in FP32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.formats.codecs import round_trip
from trilemma.formats.formats import Format
from trilemma.precision.decoder import Cast, apply_head, apply_layer, rotations, unchanged
from trilemma.precision.decoder_shape import DecoderShape
from trilemma.precision.weights_files import WeightFiles

#: Role of a group within a layer → the matrices it holds, and the word by which the decoder names their input.
LAYER_GROUPS: dict[str, tuple[tuple[str, ...], str]] = {
    "attention.qkv": (("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"), "qkv"),
    "attention.o": (("self_attn.o_proj.weight",), "o"),
    "ffn.gate_up": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    "ffn.down": (("mlp.down_proj.weight",), "down"),
}
EMBEDDING, HEAD = "embedding", "head"
#: Logits are made for so many values at a time.
_LOGITS_AT_ONCE = 2**24
#: Layers are kept in memory when all of them take no more than this.
_KEEP_BYTES = 2**31


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixGroup:
    """One decision: matrices of one layer (or a table at an end) that share a format. ``name`` is as in precision plans."""

    name: str
    role: str
    layer: int | None
    tensors: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def bytes_in(self, fmt: Format) -> int:
        return sum(int(fmt.storage_bytes(shape)) for shape in self.shapes)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulatedFormats:
    """Formats to emulate: ``weights`` by group name, ``activations`` and cache (``k``, ``v``) by group name or kind.

    Activation formats share one scale per row of (token, channels): ``fp8_channel`` and ``int8_channel`` are per token.
    ``choices`` are further arguments of `trilemma.formats.codecs.quantise`, by format name.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    activations: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """How far a run is from the full-precision one on the same tokens: nats per token, and both perplexities."""

    kl: float
    perplexity: float
    reference_perplexity: float
    tokens: int


def matrix_groups(shape: DecoderShape) -> tuple[MatrixGroup, ...]:
    """The groups of a decoder in the order of its layers; a tied head belongs to the embedding."""
    sizes = shape.tensors()

    def group(role: str, layer: int | None, tensors: Sequence[str]) -> MatrixGroup:
        name = role if layer is None else f"{layer}.{role}"
        return MatrixGroup(
            name=name, role=role, layer=layer, tensors=tuple(tensors), shapes=tuple(sizes[one] for one in tensors)
        )

    found = [group(EMBEDDING, None, ["model.embed_tokens.weight"])]
    for index in range(shape.layers):
        for role, (names, _) in LAYER_GROUPS.items():
            found.append(group(role, index, [f"model.layers.{index}.{name}" for name in names]))
    if not shape.tied:
        found.append(group(HEAD, None, ["lm_head.weight"]))
    return tuple(found)


class Emulator:
    """A decoder on disk with tokens to run it on. Holds one layer at a time unless the whole model is small."""

    def __init__(self, weights: WeightFiles, ids: NDArray[np.int64]) -> None:
        """``ids``: (sequences, tokens) of token ids; the last token of each sequence is only predicted."""
        if ids.ndim != 2 or ids.shape[1] < 2:
            raise InputError(f"token ids of shape {ids.shape} cannot be predicted; give sequences of at least 2 tokens")
        if ids.shape[1] - 1 > weights.shape.max_positions:
            raise InputError(
                f"sequences of {ids.shape[1] - 1:,} tokens are longer than the {weights.shape.max_positions:,} positions"
            )
        self.weights, self.shape = weights, weights.shape
        self.inputs = torch.from_numpy(np.ascontiguousarray(ids[:, :-1]))
        self.targets = torch.from_numpy(np.ascontiguousarray(ids[:, 1:]))
        self.rotation = rotations(self.shape, ids.shape[1] - 1)
        self.groups = {group.name: group for group in matrix_groups(self.shape)}
        elements = sum(math.prod(size) for size in self.shape.tensors().values())
        self._kept: dict[str, torch.Tensor] | None = {} if 4 * elements <= _KEEP_BYTES else None

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor as stored, FP32."""
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        value = torch.from_numpy(self.weights.read(name))
        if self._kept is not None:
            self._kept[name] = value
        return value

    def layer(self, index: int) -> dict[str, torch.Tensor]:
        """The tensors of one layer, by their names within it."""
        prefix = f"model.layers.{index}."
        return {
            name.removeprefix(prefix): self.tensor(name) for name in self.shape.tensors() if name.startswith(prefix)
        }

    def in_format(
        self, group: MatrixGroup, fmt: str, choices: Mapping[str, Any] | None = None
    ) -> dict[str, torch.Tensor]:
        """The matrices of ``group`` after a round trip through ``fmt``, by full name."""
        return {name: quantised(self.tensor(name), fmt, choices) for name in group.tensors}

    def embedded(self, table: torch.Tensor) -> torch.Tensor:
        """(sequences, tokens, hidden) that enter the first layer."""
        return functional.embedding(self.inputs, table)

    def head_matrix(self) -> torch.Tensor:
        return self.tensor("model.embed_tokens.weight" if self.shape.tied else "lm_head.weight")

    def hidden(self, precision: EmulatedFormats | None = None, record: Cast = unchanged) -> torch.Tensor:
        """What leaves the last layer; ``record`` sees activations by ``layer.kind`` before they are cast."""
        precision = precision or EmulatedFormats()
        x = self.embedded(self._table(precision))
        for index in range(self.shape.layers):
            weights = self.layer(index)
            for role in LAYER_GROUPS:
                fmt = precision.weights.get(f"{index}.{role}")
                if fmt is not None:
                    changed = self.in_format(self.groups[f"{index}.{role}"], fmt, precision.choices.get(fmt))
                    weights |= {name.removeprefix(f"model.layers.{index}."): value for name, value in changed.items()}
            x = apply_layer(x, weights, self.shape, self.rotation, _cast(index, precision, record))
        return x

    def quality(self, precision: EmulatedFormats, reference: torch.Tensor | None = None) -> Quality:
        """The run in ``precision`` beside the one in full precision; ``reference`` are hidden states of the latter."""
        with torch.inference_mode():
            clean = self.hidden() if reference is None else reference
            changed = self.hidden(precision)
            matrix = self.head_matrix()
            fmt = precision.weights.get(EMBEDDING if self.shape.tied else HEAD)
            cast = matrix if fmt is None else quantised(matrix, fmt, precision.choices.get(fmt))
            return self.compare(clean, changed, matrix, cast, _cast(None, precision, unchanged))

    def compare(
        self,
        clean: torch.Tensor,
        changed: torch.Tensor,
        matrix: torch.Tensor,
        cast: torch.Tensor,
        inputs: Cast = unchanged,
    ) -> Quality:
        """KL of the logits of ``changed`` through ``cast`` from those of ``clean`` through ``matrix``, and perplexities."""
        gain = self.tensor("model.norm.weight")
        sums = torch.zeros(3, dtype=torch.float64)
        count = 0
        for rows in self._token_slices():
            exact = apply_head(clean.flatten(0, 1)[rows], gain, matrix, self.shape).log_softmax(-1)
            other = apply_head(changed.flatten(0, 1)[rows], gain, cast, self.shape, inputs).log_softmax(-1)
            targets = self.targets.flatten()[rows, None]
            sums[0] += (exact.exp() * (exact - other)).sum(dtype=torch.float64)
            sums[1] -= other.gather(1, targets).sum(dtype=torch.float64)
            sums[2] -= exact.gather(1, targets).sum(dtype=torch.float64)
            count += len(targets)
        kl, loss, reference = (sums / count).tolist()
        return Quality(kl=kl, perplexity=_exp(loss), reference_perplexity=_exp(reference), tokens=count)

    def _table(self, precision: EmulatedFormats) -> torch.Tensor:
        table = self.tensor("model.embed_tokens.weight")
        fmt = precision.weights.get(EMBEDDING)
        return table if fmt is None else quantised(table, fmt, precision.choices.get(fmt))

    def _token_slices(self) -> Iterator[slice]:
        total = self.targets.numel()
        step = max(1, _LOGITS_AT_ONCE // self.shape.vocab)
        return (slice(start, min(start + step, total)) for start in range(0, total, step))


def quantised(values: torch.Tensor, fmt: str, choices: Mapping[str, Any] | None = None) -> torch.Tensor:
    """``values`` after a round trip through ``fmt``: rows along the last dimension, same shape."""
    return torch.from_numpy(np.ascontiguousarray(round_trip(values.numpy(), fmt, **(choices or {}))))


def can_hold(group: MatrixGroup, fmt: Format) -> bool:
    """Whether every matrix of ``group`` can be encoded: GGUF blocks need whole rows and an encoder here."""
    if fmt.kind != "packed":
        return True
    from trilemma.formats.gguf_blocks import ENCODERS

    return fmt.name in ENCODERS and all(shape[-1] % fmt.group == 0 for shape in group.shapes)


def check_formats(names: Sequence[str]) -> tuple[Format, ...]:
    """The formats called ``names`` as candidates for weights. Raises `InputError` for those that hold no tensor."""
    found: dict[str, Format] = {}
    for name in names:
        fmt = catalogue.get(name)
        unscaled = fmt.granularity == "none" and fmt.bits < 16
        if fmt.special == "scale" or (unscaled and fmt.kind != "packed"):
            raise InputError(
                f"{fmt.name} has no scale and holds no weights; use one that has, such as fp8_channel or int4_g32"
            )
        found[fmt.name] = fmt
    if not found:
        raise InputError("no candidate formats; give --formats, such as int8_g32,int4_g32")
    return tuple(found.values())


def cut(ids: NDArray[np.int64], *, sequences: int, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two disjoint sets of up to ``sequences`` windows of ``tokens`` + 1 ids: to calibrate on and to judge by.

    The windows alternate over the text, so that both see all of it. Raises `InputError` for text too short for one each.
    """
    windows = len(ids) // (tokens + 1)
    if windows < 2:
        raise InputError(
            f"the data give {len(ids):,} tokens; two windows of {tokens + 1:,} are needed: give more text or a smaller --window"
        )
    take = min(windows // 2, sequences)
    starts = np.linspace(0, windows - 1, 2 * take).astype(np.int64)
    rows = ids[: windows * (tokens + 1)].reshape(windows, tokens + 1)[starts]
    return rows[0::2], rows[1::2]


def _cast(index: int | None, precision: EmulatedFormats, record: Cast) -> Cast:
    """The cast of one layer (None: the head): what ``record`` sees, then the format that the plan gives to its input."""
    if record is unchanged and not precision.activations:
        return unchanged
    inputs = {kind: role for role, (_, kind) in LAYER_GROUPS.items()} | {HEAD: HEAD}

    def cast(kind: str, values: torch.Tensor) -> torch.Tensor:
        seen = record(kind if index is None else f"{index}.{kind}", values)
        role = inputs.get(kind, kind)
        fmt = precision.activations.get(role if index is None else f"{index}.{role}") or precision.activations.get(role)
        if fmt is None:
            return seen
        flat = seen.reshape(-1, seen.shape[-1]).contiguous()
        return quantised(flat, fmt, precision.choices.get(fmt)).view(seen.shape)

    return cast


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
