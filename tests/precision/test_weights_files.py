"""Weight files from outside: read exactly, or refused with one line."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.precision.decoder_shape import DecoderShape, shape_from_config
from trilemma.precision.tiny_model import FOLDER, config
from trilemma.precision.tokens import read_ids
from trilemma.precision.weights_files import WeightFiles, open_weights

SMALL = DecoderShape(
    family="llama", hidden=16, layers=2, heads=4, kv_heads=2, head_dim=4, intermediate=24, vocab=20, max_positions=32,
    tied=True,
)  # fmt: skip
#: Order of a llama2.c file.
PARTS = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj",
)  # fmt: skip


def values_of(shape: DecoderShape) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(size).astype(np.float32) for name, size in shape.tensors().items()}


def neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows that pair halves of a head reordered to pair neighbours, as llama2.c and GGUF store them."""
    count, columns = rows.shape
    return rows.reshape(heads, 2, count // heads // 2, columns).transpose(0, 2, 1, 3).reshape(count, columns)


def stored(name: str, value: np.ndarray) -> np.ndarray:
    heads = {"q_proj": SMALL.heads, "k_proj": SMALL.kv_heads}.get(name.split(".")[-2], 0)
    return neighbours(value, heads) if heads else value


def llama2c(path: Path, values: dict[str, np.ndarray]) -> Path:
    one = SMALL
    head = struct.pack(
        "<7i", one.hidden, one.intermediate, one.layers, one.heads, one.kv_heads, one.vocab, one.max_positions
    )
    names = ["model.embed_tokens.weight"]
    names += [f"model.layers.{at}.{part}.weight" for part in PARTS for at in range(one.layers)]
    body = b"".join(stored(name, values[name]).tobytes() for name in [*names, "model.norm.weight"])
    path.write_bytes(head + body + bytes(4 * one.max_positions * one.head_dim))
    return path


def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(FOLDER, folder)
    return folder


def test_llama2c_rows_are_reordered(tmp_path: Path) -> None:
    values = values_of(SMALL)
    opened = open_weights(llama2c(tmp_path / "model.bin", values))
    assert opened.shape == SMALL
    for name, value in values.items():
        np.testing.assert_array_equal(opened.read(name), value)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_gguf_holds_the_same_decoder(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    shape = DecoderShape(
        family="llama", hidden=64, layers=1, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=32, max_positions=64,
        tied=False,
    )  # fmt: skip
    values = values_of(shape)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (
        ("embedding_length", 64),
        ("block_count", 1),
        ("feed_forward_length", 96),
        ("context_length", 64),
    ):
        getattr(writer, f"add_{key}")(value)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    names = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
        "blk.0.attn_norm": "model.layers.0.input_layernorm", "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
        "blk.0.attn_q": "model.layers.0.self_attn.q_proj", "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
        "blk.0.attn_v": "model.layers.0.self_attn.v_proj", "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
        "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj", "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    }  # fmt: skip
    for theirs, ours in names.items():
        value = values[f"{ours}.weight"]
        heads = {"attn_q": 4, "attn_k": 2}.get(theirs.split(".")[-1], 0)
        value = neighbours(value, heads) if heads else value
        one = gguf.GGMLQuantizationType.F32 if value.ndim == 1 else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{theirs}.weight", gguf.quants.quantize(np.ascontiguousarray(value), one), raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = open_weights(path)
    assert (opened.shape.hidden, opened.shape.layers, opened.shape.vocab, opened.shape.tied) == (64, 1, 32, False)
    error = {"F32": 0.0, "F16": 2e-3, "Q8_0": 2e-2}[kind]
    for name, value in values.items():
        np.testing.assert_allclose(opened.read(name), value, atol=error)


def test_the_shipped_model_is_small_and_complete() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 2_000_000
    opened = open_weights(FOLDER)
    assert opened.shape == shape_from_config(config(), what="config")
    assert all(np.isfinite(opened.read(name)).all() for name in opened.pieces)
    ids = read_ids(FOLDER / "held_out.txt", opened)
    assert bytes(ids.astype(np.uint8)) == (FOLDER / "held_out.txt").read_bytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_named(bad: float, tmp_path: Path) -> None:
    values = values_of(SMALL)
    values["model.layers.1.mlp.up_proj.weight"][3, 5] = bad
    opened = open_weights(llama2c(tmp_path / "model.bin", values))
    with pytest.raises(
        InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds 1 values that are NaN or infinite"
    ):
        opened.read("model.layers.1.mlp.up_proj.weight")


def break_config(change: dict[str, object]) -> Callable[[Path], None]:
    def breaks(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(config() | change))

    return breaks


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (break_config({"hidden_size": 64}), "the configuration says"),
        (break_config({"num_hidden_layers": 5}), "has no tensor"),
        (break_config({"model_type": "mamba"}), "not measured here"),
        (break_config({"num_key_value_heads": 3}), "do not divide"),
        (break_config({"num_attention_heads": 0}), "at least 1"),
        (break_config({"head_dim": "wide"}), "head_dim"),
        (break_config({"vocab_size": 10**12}), "vocab"),
        (break_config({"rope_scaling": {"rope_type": "yarn"}}), "rotary"),
        (break_config({"rms_norm_eps": None}), "rms_norm_eps"),
        (break_config({"quantization_config": {"quant_method": "awq"}}), "quantised already"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cut off"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
    ],
)
def test_broken_checkpoints(breaks: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = tiny(tmp_path)
    breaks(folder)
    with pytest.raises(InputError, match=message):
        open_weights(folder)


@pytest.mark.parametrize("name", ["nothing", "nothing.gguf", "a\0b", "."])
def test_paths_that_hold_no_weights(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_weights(tmp_path / name)


@given(st.data())
@settings(max_examples=60)
def test_no_change_of_bytes_breaks_the_readers(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    base = tmp_path_factory.getbasetemp()
    whole = llama2c(base / "fuzzed.bin", values_of(SMALL))
    raw = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 27))] = data.draw(st.integers(0, 255))
    whole.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw))
    try:
        opened = open_weights(whole)
    except InputError:
        return
    for name in opened.pieces:
        try:
            opened.read(name)
        except InputError:
            return


@given(position=st.integers(0, 4000), value=st.integers(0, 255))
@settings(max_examples=60)
def test_no_byte_of_a_header_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    if not folder.is_dir():
        shutil.copytree(FOLDER, folder)
    raw = bytearray((FOLDER / "model.safetensors").read_bytes())
    raw[position] = value
    (folder / "model.safetensors").write_bytes(raw)
    try:
        opened = open_weights(folder)
        opened.read("model.norm.weight")
    except InputError:
        pass


def opened_small(tmp_path: Path) -> WeightFiles:
    return open_weights(llama2c(tmp_path / "model.bin", values_of(SMALL)))


def test_token_ids_from_outside(tmp_path: Path) -> None:
    opened = opened_small(tmp_path)
    good = tmp_path / "ids.npy"
    np.save(good, np.arange(20))
    assert read_ids(good, opened).tolist() == list(range(20))
    for name, array in (
        ("low", np.array([-1, 2])),
        ("high", np.array([3, 20])),
        ("real", np.array([0.5, 1])),
        ("one", np.array([3])),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(InputError):
            read_ids(tmp_path / f"{name}.npy", opened)
    np.save(tmp_path / "code.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "short.npy").write_bytes(b"\x93NUMPY\x01")
    for name in ("code.npy", "short.npy", "absent.npy", "absent.txt"):
        with pytest.raises(InputError):
            read_ids(tmp_path / name, opened)


@pytest.mark.parametrize(
    ("raw", "message"), [(b"", "empty"), (b" \n", "empty"), (b"\xff\xfe\xfd", "UTF-8"), (b"a", "1 tokens")]
)
def test_texts_that_cannot_be_used(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=message):
        read_ids(path, open_weights(FOLDER))


def test_a_tokenizer_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("hello world")
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        read_ids(path, opened_small(tmp_path))
    (tmp_path / "tok20.bin").write_bytes(struct.pack("<i", 5) + struct.pack("<fi", 0.0, 999) + b"abc")
    with pytest.raises(InputError, match="cut off"):
        read_ids(path, opened_small(tmp_path))
    pieces = [b"<unk>", b"<s>", b"</s>", b" ", b"h", b"e", b"l", b"o", b"w", b"r", b"d", b"he", b"ll", b"hell", b"hello",
              b" hello", b"wo", b"x", b"y", b"z"]  # fmt: skip
    listed = b"".join(struct.pack("<fi", float(at), len(one)) + one for at, one in enumerate(pieces))
    (tmp_path / "tok20.bin").write_bytes(struct.pack("<i", 6) + listed)
    ids = read_ids(path, opened_small(tmp_path))
    assert [pieces[at] for at in ids] == [b"<s>", b" hello", b" ", b"wo", b"r", b"l", b"d"]
