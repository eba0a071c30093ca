"""Configurations that are wrong, absurd or meant to harm: one short `InputError`, never another exception, never slow."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.models import catalogue
from trilemma.models.architecture import Model
from trilemma.models.parameters import count
from trilemma.models.read import model_from_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
WRONG: list[Any] = [-1, 0, 2.5, 1e30, 10**40, "8", True, float("nan"), float("inf"), [], [8], {}, "x" * 10**6]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:12])
def test_a_wrong_size_names_key_and_remedy(key: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config({**LLAMA, key: value}, name="test")
    text = str(caught.value)
    assert key in text
    assert len(text) < 300
    assert "\n" not in text


@pytest.mark.parametrize("key", [key for key in SIZES if key != "num_key_value_heads"])
def test_a_missing_size_is_named(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(InputError, match=f"{key} is missing"):
        model_from_config(config, name="test")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 3},
        {"torch_dtype": "int4_g128"},
        {"torch_dtype": 7},
        {"tie_word_embeddings": "yes"},
        {"model_type": ["llama"]},
        {"text_config": [1, 2]},
        {"vision_config": "tower"},
        {"model_type": "gpt_oss", "layer_types": ["full_attention"]},
        {"model_type": "gpt_oss", "layer_types": ["full_attention", "no such kind"]},
        {"model_type": "gpt_oss", "layer_types": ["full_attention"] * 100_000},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*E"},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "MX"},
        {"model_type": "nemotron-nas", "block_configs": [{}, {"attention": {"n_heads_in_group": 3}}]},
        {"model_type": "deepseek_v4"},
        {"model_type": "kimi_linear"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_contradictions_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        model_from_config({**LLAMA, **changes}, name="test")


def test_sizes_that_multiply_out_of_bounds_are_refused() -> None:
    wide = {"hidden_size": 2**20, "intermediate_size": 2**24, "num_local_experts": 2**14, "num_attention_heads": 64}
    with pytest.raises(InputError, match="check the sizes"):
        model_from_config({**LLAMA, **wide, "model_type": "mixtral"}, name="test")


def test_many_keys_are_refused() -> None:
    with pytest.raises(InputError, match="keys"):
        model_from_config({**LLAMA, **{f"k{index}": index for index in range(10_000)}}, name="test")


def test_names_from_outside_are_shown_harmlessly() -> None:
    model = model_from_config({**LLAMA, "\x1b[31mred\udc80": 7}, name="test")
    assert model.unknown_fields == ("?[31mred?",)
    wrapped = model_from_config({"model_type": "\x1b" * 5000, "text_config": LLAMA}, name="test")
    assert wrapped.family == "llama"
    assert all(text.isprintable() and len(text) < 100 for text in wrapped.unknown_fields)


_CONFIGS = [catalogue.config(name) for name in catalogue.names()]
_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2, 3, 7, 64, 10**6, 10**12, -(2**63)]),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-1, 9), max_size=4),
    st.just([1] * 5000),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(index=st.integers(0, len(_CONFIGS) - 1), seed=st.integers(0, 2**32), junk=_JUNK, drop=st.booleans())
def test_a_damaged_configuration_is_answered_or_refused(index: int, seed: int, junk: Any, drop: bool) -> None:
    config = json.loads(json.dumps(_CONFIGS[index]))
    choose = random.Random(seed)
    part = choose.choice([config, *(value for value in config.values() if isinstance(value, dict) and value)])
    key = choose.choice(sorted(part))
    if drop:
        del part[key]
    else:
        part[key] = junk
    start = time.perf_counter()
    try:
        answer: Model | None = model_from_config(config, name="damaged")
    except InputError:
        answer = None
    assert time.perf_counter() - start < 5
    if answer is not None:
        found = count(answer)
        assert found.total == sum(t.elements for t in answer.tensors if t.part != "mtp" and t.role != "table")
        assert 0 <= found.active <= found.total


def test_a_format_for_each_of_many_modules_is_read_soon() -> None:
    """MLX lists modules by name beside the general bits: as many as a hostile file likes."""
    modules = {f"model.layers.{at}.mlp.up_proj": {"bits": 8, "group_size": 64} for at in range(10_000)}
    before = time.process_time()
    model = model_from_config({**LLAMA, "quantization": {"bits": 4, "group_size": 64, **modules}}, name="many")
    assert time.process_time() - before < 5
    formats = {one.format.name for one in model.tensors if "up_proj" in one.name}
    assert len(formats) == 1
    assert formats != {one.format.name for one in model.tensors if "down_proj" in one.name}
