"""Weights of a decoder from safetensors, GGUF and llama2.c files: one tensor at a time, checked before anything is computed."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.formats.codecs import dequantise
from trilemma.formats.encoded import Encoded
from trilemma.formats.formats import Format
from trilemma.models import gguf_file, headers
from trilemma.models.documents import read_json
from trilemma.outside_files import reason
from trilemma.precision.decoder_shape import DecoderShape, shape_from_config, shape_from_gguf

Floats = NDArray[np.float32]

_UNQUANTISED = ("fp32", "fp16", "bf16", "fp64")
_LLAMA2C_HEADER = 28
#: GGUF name of a tensor of a layer → its name in a Transformers checkpoint.
_GGUF_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_GGUF_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Where one tensor lies: a file, the bytes in it, and how they are coded. ``rotary_heads`` > 0 marks rows that pair
    neighbours for rotary positions (llama2.c, GGUF of llama) and are reordered to pair halves."""

    path: Path
    offset: int
    n_bytes: int
    shape: tuple[int, ...]
    format: Format
    rotary_heads: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFiles:
    """A decoder on disk. Names are those of a Transformers checkpoint, whatever the file calls them."""

    shape: DecoderShape
    pieces: Mapping[str, Piece]
    source: str
    folder: Path

    def read(self, name: str) -> Floats:
        """One tensor as FP32, (out, in). Raises `InputError` where it holds NaN or infinity."""
        piece = self.pieces[name]
        try:
            raw = np.fromfile(piece.path, np.uint8, count=piece.n_bytes, offset=piece.offset)
        except OSError as error:
            raise InputError(f"{shorten(str(piece.path))} cannot be read: {error.strerror or error}") from None
        if raw.size != piece.n_bytes:
            raise InputError(f"{shorten(str(piece.path))} was cut off while it was read; fetch it again")
        values = _decoded(raw, piece)
        bad = values.size - int(np.count_nonzero(np.isfinite(values)))
        if bad:
            raise InputError(
                f"{shorten(name)} holds {bad:,} values that are NaN or infinite; nothing can be measured on it: mend the file"
            )
        return _halves(values, piece.rotary_heads) if piece.rotary_heads else values

    def stored_as(self, name: str) -> str:
        """The number format in which the file holds a tensor."""
        return self.pieces[name].format.name


def open_weights(path: str | Path) -> WeightFiles:
    """The decoder at ``path``: a folder with config.json and ``*.safetensors``, one such file, ``*.gguf``, or llama2.c ``*.bin``.

    Raises `InputError` for anything else, for tensors that are missing or of another shape than the configuration says, and
    for weights that are quantised already (GGUF blocks are read as the values they stand for).
    """
    file = Path(path)
    try:
        folder, regular = file.is_dir(), file.is_file()
    except (OSError, ValueError):
        folder = regular = False
    if folder:
        paths = _safetensors_in(file)
        return _from_safetensors(paths, file)
    if not regular:
        raise InputError(f"{shorten(str(path))} is no file or folder; give *.safetensors, its folder, *.gguf or *.bin")
    try:
        if file.suffix == ".gguf":
            return _from_gguf(file)
        if file.suffix == ".bin":
            return _from_llama2c(file)
        if file.suffix == ".safetensors":
            return _from_safetensors(headers.shards_of(file), file.parent)
    except OSError as error:
        raise InputError(f"{shorten(str(path))} cannot be read: {reason(error)}; fetch it again") from None
    raise InputError(f"{shorten(str(path))} is of no kind read here; give *.safetensors, its folder, *.gguf or *.bin")


def _safetensors_in(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / shard for shard in headers.read_index(index).shards]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    raise InputError(f"{shorten(str(folder))} holds no model.safetensors and no index; give the weights themselves")


def _from_safetensors(paths: Iterable[Path], folder: Path) -> WeightFiles:
    what = shorten(str(folder / "config.json"))
    shape = shape_from_config(read_json(folder / "config.json"), what=what)
    found: dict[str, Piece] = {}
    for path in paths:
        for name, piece in _safetensors_pieces(path):
            if found.setdefault(name, piece) is not piece:
                raise InputError(f"{shorten(name)} is in two files of {shorten(str(folder))}; fetch them again")
    return _checked(shape, found, source=str(folder), folder=folder)


def _safetensors_pieces(path: Path) -> Iterable[tuple[str, Piece]]:
    tensors = headers.read_header(path)  # in the order of their data, which they tile without holes
    with path.open("rb") as stream:
        offset = 8 + int.from_bytes(stream.read(8), "little")
    for tensor in tensors:
        yield (
            tensor.name,
            Piece(path=path, offset=offset, n_bytes=tensor.n_bytes, shape=tensor.shape, format=tensor.format),
        )
        offset += tensor.n_bytes


def _from_gguf(path: Path) -> WeightFiles:
    found: dict[str, Piece] = {}
    metadata: Mapping[str, Any] = {}
    for file in gguf_file.files_of(path):
        header = gguf_file.read_header(file)
        metadata = metadata or header.metadata
        for tensor, offset in zip(header.tensors, header.offsets, strict=True):
            name = _from_gguf_name(tensor.name)
            if name is not None:
                found[name] = Piece(
                    path=file, offset=offset, n_bytes=tensor.n_bytes, shape=tensor.shape, format=tensor.format
                )
    embedding = found.get("model.embed_tokens.weight")
    if embedding is None:
        raise InputError(f"{shorten(str(path))} has no token_embd.weight; give a language model")
    shape = shape_from_gguf(
        metadata, vocab=embedding.shape[0], tied="lm_head.weight" not in found, what=shorten(str(path))
    )
    if shape.family in ("llama", "mistral"):  # llama.cpp rotates neighbours there, halves in the others
        found = {name: _with_rotary(piece, name, shape) for name, piece in found.items()}
    return _checked(shape, found, source=str(path), folder=path.parent)


def _from_gguf_name(name: str) -> str | None:
    if name in _GGUF_ENDS:
        return _GGUF_ENDS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and len(parts[1]) < 5 and parts[2] in _GGUF_LAYER:
        return f"model.layers.{int(parts[1])}.{_GGUF_LAYER[parts[2]]}.{parts[3]}"
    return None


def _with_rotary(piece: Piece, name: str, shape: DecoderShape) -> Piece:
    heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2], 0)
    return Piece(
        path=piece.path, offset=piece.offset, n_bytes=piece.n_bytes, shape=piece.shape, format=piece.format,
        rotary_heads=heads,
    )  # fmt: skip


def _from_llama2c(path: Path) -> WeightFiles:
    """karpathy/llama2.c export.py, version 0: seven int32, then FP32 tensors in a fixed order, layers stacked."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_LLAMA2C_HEADER)
    if len(head) < _LLAMA2C_HEADER:
        raise InputError(f"{shorten(str(path))} is shorter than a llama2.c header; fetch it again")
    hidden, intermediate, layers, heads, kv_heads, vocab, positions = struct.unpack("<7i", head)
    shape = DecoderShape(
        family="llama", hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=hidden // max(heads, 1),
        intermediate=intermediate, vocab=abs(vocab), max_positions=positions, tied=vocab > 0,
    )  # fmt: skip
    fp32 = catalogue.get("fp32")
    expected = shape.tensors()
    found: dict[str, Piece] = {}
    offset = _LLAMA2C_HEADER

    def place(names: list[str]) -> None:
        nonlocal offset
        for name in names:
            n_bytes = 4 * math.prod(expected[name])
            found[name] = Piece(path=path, offset=offset, n_bytes=n_bytes, shape=expected[name], format=fp32)
            offset += n_bytes

    place(["model.embed_tokens.weight"])
    for part in (
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj",
    ):  # fmt: skip
        place([f"model.layers.{index}.{part}.weight" for index in range(layers)])
    place(["model.norm.weight"])
    offset += 4 * positions * shape.head_dim  # two tables of rotary positions, which follow from theta
    if not shape.tied:
        place(["lm_head.weight"])
    if offset != size:
        raise InputError(
            f"{shorten(str(path))} has {size:,} bytes where its header promises {offset:,}; fetch it again"
        )
    found = {name: _with_rotary(piece, name, shape) for name, piece in found.items()}
    return _checked(shape, found, source=str(path), folder=path.parent)


def _checked(shape: DecoderShape, found: dict[str, Piece], *, source: str, folder: Path) -> WeightFiles:
    pieces: dict[str, Piece] = {}
    for name, wanted in shape.tensors().items():
        piece = found.get(name)
        if piece is None:
            raise InputError(f"{shorten(source)} has no tensor {name}; give a complete checkpoint")
        if piece.shape != wanted:
            raise InputError(
                f"{shorten(source)}: {name} is {piece.shape}, the configuration says {wanted}; fetch both again"
            )
        if piece.format.name not in _UNQUANTISED and piece.format.kind != "packed":
            raise InputError(f"{shorten(source)}: {name} is stored as {piece.format.name}; measure unquantised weights")
        pieces[name] = piece
    return WeightFiles(shape=shape, pieces=pieces, source=source, folder=folder)


def _decoded(raw: NDArray[np.uint8], piece: Piece) -> Floats:
    if piece.format.kind == "packed":
        rows = math.prod(piece.shape[:-1])
        shape = (rows, piece.shape[-1])
        encoded = Encoded(format=piece.format, shape=shape, codes=raw.reshape(rows, -1))
        return dequantise(encoded).reshape(piece.shape)
    decode = _DECODERS[piece.format.name]
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(decode(raw).reshape(piece.shape), dtype=np.float32)


_DECODERS: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    "fp32": lambda raw: raw.view("<f4"),
    "fp64": lambda raw: raw.view("<f8"),
    "fp16": lambda raw: raw.view("<f2"),
    "bf16": lambda raw: (raw.view("<u2").astype(np.uint32) << 16).view(np.float32),
}


def _halves(values: Floats, heads: int) -> Floats:
    """Rows that pair neighbours (0, 1), (2, 3) … within a head reordered to pair halves, as Transformers rotates."""
    rows, columns = values.shape
    paired = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(paired.transpose(0, 2, 1, 3).reshape(rows, columns))
