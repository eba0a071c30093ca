"""Safetensors and GGUF headers: exact bytes, with and without a configuration beside them."""

from __future__ import annotations

import json
import math
import struct

import pytest
from weight_files import GGUF_BLOCKS, safetensors_header, write_gguf, write_safetensors

from trilemma.errors import InputError
from trilemma.models import catalogue
from trilemma.models.gguf_file import read_header as read_gguf
from trilemma.models.headers import read_header
from trilemma.models.parameters import count, weight_bytes
from trilemma.models.resolve import load_model

CONFIG = {key: value for key, value in catalogue.config("qwen3-0.6b").items() if not key.startswith("_")}


@pytest.fixture(scope="module")
def model():
    return load_model("qwen3-0.6b")


def bf16_tensors(model):
    return {name_of(tensor): ("BF16", tensor.shape) for tensor in model.tensors}


def name_of(tensor):
    return tensor.name if tensor.name.startswith("model.") else f"model.{tensor.name}"


def test_weights_that_are_what_the_configuration_promises_change_nothing(tmp_path, model):
    write_safetensors(tmp_path / "model.safetensors", bf16_tensors(model))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = load_model(str(tmp_path))
    assert sorted(found.tensors, key=lambda t: t.name) == sorted(model.tensors, key=lambda t: t.name)
    assert found.assumptions == model.assumptions


def test_without_a_configuration_sizes_are_exact_and_the_rest_is_named(tmp_path, model):
    write_safetensors(tmp_path / "weights.safetensors", bf16_tensors(model))
    found = load_model(str(tmp_path / "weights.safetensors"))
    assert weight_bytes(found) == weight_bytes(model)
    assert count(found).total == 596_049_920
    assert (found.hidden, found.vocab, len(found.layers), found.tied_embeddings) == (1024, 151936, 28, True)
    assert "cache" in found.unknown_fields


def test_scales_and_unmentioned_tensors_are_counted(tmp_path, model):
    tensors = bf16_tensors(model)
    name = next(name for name in tensors if name.endswith("layers.3.mlp.up_proj.weight"))
    shape = tensors[name][1]
    tensors[name] = ("F8_E4M3", shape)
    tensors[f"{name}_scale_inv"] = ("F32", (shape[0] // 128, shape[1] // 128))
    tensors["model.visual.blocks.0.attn.qkv.weight"] = ("BF16", (96, 32))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = load_model(str(tmp_path))
    expected = sum(math.prod(shape) * {"BF16": 2, "F8_E4M3": 1, "F32": 4}[dtype] for dtype, shape in tensors.values())
    assert sum(tensor.bytes for tensor in found.tensors) == expected
    assert [tensor.part for tensor in found.tensors if "visual" in tensor.name] == ["vision"]


def test_fused_projections_share_the_bytes_of_their_layer(tmp_path, model):
    tensors = bf16_tensors(model)
    fused = {}
    for layer in range(28):
        parts = [tensors.pop(f"model.layers.{layer}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        fused[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = ("F8_E4M3", (2 * parts[0][1][0], parts[0][1][1]))
    write_safetensors(tmp_path / "model.safetensors", tensors | fused)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = load_model(str(tmp_path))
    gate = next(tensor for tensor in found.tensors if tensor.role == "ffn.gate")
    assert gate.bytes == gate.elements
    assert count(found).total == count(model).total


def test_shards_and_index(tmp_path, model):
    tensors = list(bf16_tensors(model).items())
    half = len(tensors) // 2
    shards = {
        "model-00001-of-00002.safetensors": dict(tensors[:half]),
        "model-00002-of-00002.safetensors": dict(tensors[half:]),
    }
    for name, part in shards.items():
        write_safetensors(tmp_path / name, part)
    index = {
        "metadata": {"total_size": weight_bytes(model)},
        "weight_map": {tensor: name for name, part in shards.items() for tensor in part},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in ("model.safetensors.index.json", "model-00002-of-00002.safetensors", ""):
        assert weight_bytes(load_model(str(tmp_path / path))) == weight_bytes(model)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    for path in ("model.safetensors.index.json", "model-00002-of-00002.safetensors"):
        with pytest.raises(InputError, match="00001-of-00002"):
            load_model(str(tmp_path / path))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    alone = load_model(str(tmp_path / "model.safetensors.index.json"))
    assert weight_bytes(alone) == weight_bytes(model)
    assert "architecture" in alone.unknown_fields


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", 7])
def test_an_index_may_only_name_files_beside_it(tmp_path, shard):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": shard}, "metadata": {"total_size": 10}}))
    with pytest.raises(InputError, match="shard"):
        load_model(str(path))


def header(text, data=b""):
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(begin, end, shape=(2,), dtype="F16"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\1\0\0",
        (2**60).to_bytes(8, "little") + b"{}",
        header({"a": entry(0, 4)}),
        header({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)),
        header({"a": entry(0, 4), "b": entry(6, 10)}, bytes(10)),
        header({"a": entry(0, 4)}, bytes(9)),
        header({"a": entry(0, 5)}, bytes(5)),
        header({"a": entry(4, 0)}, bytes(4)),
        header({"a": entry(0, 4, shape=(-2,))}, bytes(4)),
        header({"a": entry(0, 4, shape=(2**62, 2**62))}, bytes(4)),
        header({"a": entry(0, 4, dtype="Q9")}, bytes(4)),
        header({"a": entry(0, 4, shape=(True,))}, bytes(4)),
        header(b'{"a": %s, "a": %s}' % ((json.dumps(entry(0, 4)).encode(),) * 2), bytes(4)),
        header(b"[" * 100_000),
        header(b"\xff\xfe{}"),
        header([1, 2]),
        header({"a": 3}),
    ],
)  # fmt: skip
def test_safetensors_files_that_lie(tmp_path, raw):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"x\.safetensors"):
        read_header(path)


GGUF_META = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 28,
    "qwen3.embedding_length": 1024,
    "qwen3.feed_forward_length": 3072,
    "qwen3.attention.head_count": 16,
    "qwen3.attention.head_count_kv": 8,
    "qwen3.attention.key_length": 128,
    "qwen3.context_length": 40960,
    "tokenizer.ggml.tokens": ["a"] * 5000,
}
STEMS = {
    "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v", "attention.o": "attn_output",
    "ffn.gate": "ffn_gate", "ffn.up": "ffn_up", "ffn.down": "ffn_down",
}  # fmt: skip


def gguf_tensors(model):
    found = {}
    for tensor in model.tensors:
        if tensor.part == "embedding":
            found["token_embd.weight"] = (14, tensor.shape)
        elif tensor.part == "head":
            found["output_norm.weight"] = (0, tensor.shape)
        elif tensor.role in STEMS:
            found[f"blk.{tensor.layer}.{STEMS[tensor.role]}.weight"] = (12, tensor.shape)
        else:
            found[f"blk.{tensor.layer}.{tensor.name.split('.')[-2]}.weight"] = (0, tensor.shape)
    return found


def test_gguf_types_are_exact(tmp_path, model):
    tensors = gguf_tensors(model)
    write_gguf(tmp_path / "model-Q4_K_M.gguf", GGUF_META, tensors)
    found = load_model(str(tmp_path / "model-Q4_K_M.gguf"))
    expected = sum(math.prod(shape) // GGUF_BLOCKS[kind][0] * GGUF_BLOCKS[kind][1] for kind, shape in tensors.values())
    assert weight_bytes(found) == expected
    assert count(found).total == count(model).total
    assert found.mixers == model.mixers
    assert found.quantization.weight_format.name == "q4_k"
    assert {tensor.format.name for tensor in found.tensors if tensor.role == "attention.q"} == {"q4_k"}
    assert next(tensor.format.name for tensor in found.tensors if tensor.part == "embedding") == "q6_k"
    assert found.tied_embeddings
    assert load_model(str(tmp_path)).tensors == found.tensors


def test_gguf_of_an_unknown_architecture_keeps_its_sizes(tmp_path, model):
    write_gguf(tmp_path / "x.gguf", {"general.architecture": "brandnew"}, gguf_tensors(model))
    found = load_model(str(tmp_path / "x.gguf"))
    assert count(found).total == count(model).total
    assert "cache" in found.unknown_fields


def test_gguf_splits(tmp_path, model):
    tensors = list(gguf_tensors(model).items())
    write_gguf(tmp_path / "m-00001-of-00002.gguf", GGUF_META, dict(tensors[:100]))
    with pytest.raises(InputError, match="00002-of-00002"):
        load_model(str(tmp_path / "m-00001-of-00002.gguf"))
    write_gguf(tmp_path / "m-00002-of-00002.gguf", {"general.architecture": "qwen3"}, dict(tensors[100:]))
    assert count(load_model(str(tmp_path / "m-00002-of-00002.gguf"))).total == count(model).total


def text(value):
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GGML" + bytes(20),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(32),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"k") + struct.pack("<I", 77),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"\xff\xff") + struct.pack("<II", 4, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text(b"k") + struct.pack("<II", 4, 1)) * 2,
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text(b"t") + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 64, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 64, 99, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text(b"t") + struct.pack("<I", 10**6),
        b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + (text(b"t") + struct.pack("<IQIQ", 1, 8, 0, 0)) * 2 + bytes(256),
    ],
)
def test_gguf_files_that_lie(tmp_path, raw):
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"x\.gguf"):
        read_gguf(path)


def test_agreement_with_the_package_of_llama_cpp(tmp_path, model):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    tensors = dict(list(gguf_tensors(model).items())[1:9])
    write_gguf(path, GGUF_META, tensors)
    theirs = {str(tensor.name): int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    assert {tensor.name: tensor.n_bytes for tensor in read_gguf(path).tensors} == theirs


def test_header_writer_of_these_tests_is_right():
    raw, size = safetensors_header({"a": ("F32", (2, 3))})
    assert size == 24
    assert json.loads(raw[8:])["a"]["data_offsets"] == [0, 24]
