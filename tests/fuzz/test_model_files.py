"""Model files with hostile bytes: only `InputError` comes out, in bounded time and memory."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.formats import catalogue as formats
from trilemma.models import catalogue
from trilemma.models.documents import parse_object
from trilemma.models.files import model_from_path
from trilemma.models.gguf_file import read_header as read_gguf
from trilemma.models.headers import read_header, read_index
from trilemma.models.naming import spell
from trilemma.models.quantized import format_of, read_quantization
from trilemma.models.resolve import resolve_name

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from weight_files import gguf_bytes, safetensors_header

BF16 = formats.get("bf16")
LIMIT = settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
WEIGHT_MAP = st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.just("a.safetensors"), max_size=5)
SAFETENSORS = b"".join(
    [
        safetensors_header({"model.embed_tokens.weight": ("BF16", (8, 4)), "model.layers.0.x.weight": ("F32", (3,))})[
            0
        ],
        bytes(76),
    ]
)
GGUF = gguf_bytes({"general.architecture": "llama", "llama.block_count": 1, "a": ["x", "y"], "n": [1, 2]},
                  {"token_embd.weight": (0, (8, 4)), "blk.0.attn_q.weight": (8, (4, 32))})[0] + bytes(512)  # fmt: skip


def only_input_error(action):
    message = ""
    try:
        action()
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 1200


def damaged(raw):
    """``raw`` with bytes replaced, cut off, or lengths overwritten."""
    position = st.integers(0, len(raw) - 1)
    flips = st.lists(st.tuples(position, st.integers(0, 255)), min_size=1, max_size=6).map(
        lambda edits: _flip(raw, edits)
    )
    lies = st.tuples(position, st.integers(0, 2**64 - 1)).map(lambda lie: _overwrite(raw, *lie))
    cuts = position.map(lambda end: raw[:end])
    return flips | lies | cuts | st.binary(max_size=200)


def _flip(raw, edits):
    changed = bytearray(raw)
    for position, byte in edits:
        changed[position] = byte
    return bytes(changed)


def _overwrite(raw, position, value):
    return raw[:position] + struct.pack("<Q", value) + raw[position + 8 :]


@LIMIT
@given(raw=damaged(SAFETENSORS))
def test_safetensors(tmp_path, raw):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    only_input_error(lambda: read_header(path))
    only_input_error(lambda: model_from_path(path, name="x"))


@LIMIT
@given(raw=damaged(GGUF))
def test_gguf(tmp_path, raw):
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    only_input_error(lambda: read_gguf(path))
    only_input_error(lambda: model_from_path(path, name="x"))


@pytest.mark.slow
@LIMIT
@given(document=st.dictionaries(st.sampled_from(["weight_map", "metadata"]), JSON | WEIGHT_MAP))
def test_index(tmp_path, document):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(document))
    only_input_error(lambda: read_index(path))
    only_input_error(lambda: model_from_path(path, name="x"))


@LIMIT
@given(raw=st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_documents(raw):
    only_input_error(lambda: parse_object(raw, what="x"))
    only_input_error(lambda: parse_object(raw, what="x", unique=True))


@pytest.mark.slow
@LIMIT
@given(base=st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"]), data=st.data())
def test_configurations_with_a_hostile_value(tmp_path, base, data):
    config = catalogue.config(base)
    config[data.draw(st.sampled_from(sorted(config)))] = data.draw(JSON)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    only_input_error(lambda: model_from_path(path, name="x"))


METHODS = (
    "gptq",
    "awq",
    "fp8",
    "fbgemm_fp8",
    "bitsandbytes",
    "mxfp4",
    "auto-round",
    "hqq",
    "torchao",
    "exl3",
    "quark",
    "modelopt",
    "compressed-tensors",
    "?",
)
FIELDS = (
    "bits",
    "group_size",
    "weight_block_size",
    "modules_to_not_convert",
    "config_groups",
    "ignore",
    "quant_algo",
    "quantized_layers",
    "dynamic",
    "extra_config",
    "quant_config",
    "quant_type",
    "global_quant_config",
    "layer_quant_config",
    "kv_cache_scheme",
    "exclude",
    "format",
)


@pytest.mark.slow
@LIMIT
@given(
    method=st.sampled_from(METHODS),
    fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5),
    beside=st.none() | JSON,
)
def test_quantization_descriptions(method, fields, beside):
    def read():
        config = {"quantization_config": {"quant_method": method, **fields}}
        found = read_quantization(config, dtype=BF16, quant_config=beside)
        format_of(found, "model.layers.0.mlp.experts.0.up_proj.weight", "experts.up", BF16)

    only_input_error(read)


@LIMIT
@given(text=st.text(max_size=60))
def test_names(text):
    spell(text)
    only_input_error(lambda: resolve_name(text))


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("x.safetensors", struct.pack("<Q", 2**60) + b"{}"),
        ("x.safetensors", struct.pack("<Q", 99_000_000) + b"{}"),
        ("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)),
        ("x.gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60)),
        ("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 999_999, 1) + struct.pack("<QcIIQ", 1, b"k", 9, 8, 2**26)),
    ],
)
def test_a_claim_of_an_exabyte_takes_no_memory(tmp_path, name, raw):
    path = tmp_path / name
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            model_from_path(path, name="x")
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_configuration_larger_than_any_is_not_read(tmp_path):
    path = Path(tmp_path / "config.json")
    with path.open("wb") as stream:
        stream.write(b'{"a": "')
        stream.truncate(2**34)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="larger"):
            model_from_path(path, name="x")
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_nesting_without_end(tmp_path):
    path = tmp_path / "config.json"
    for raw in (b"[" * 10**6, b'{"a":' * 10**6, b'{"model_type": "llama", "x": ' + b"[" * 900 + b"]" * 900 + b"}"):
        path.write_bytes(raw)
        with pytest.raises(InputError):
            model_from_path(path, name="x")


def test_a_huge_number_in_a_configuration(tmp_path):
    path = tmp_path / "config.json"
    for value in ("9" * 5000, "9" * 4000, "1e400", "NaN", "-Infinity"):
        path.write_text('{"model_type": "llama", "hidden_size": ' + value + "}")
        with pytest.raises(InputError):
            model_from_path(path, name="x")
