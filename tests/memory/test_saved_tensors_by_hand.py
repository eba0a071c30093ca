"""Each tensor that a decoder layer keeps for its backward pass, from the published shapes of models, by how the layer is written.

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), Dao et al. 2022 (log-sum-exp), DeepSeek-V2 (arXiv 2405.04434), Mamba-2
(ssd_combined.py); autograd keeps the inputs of products whose other factor needs a gradient.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from trilemma.memory.layer_facts import LayerFacts, kinds
from trilemma.memory.saved_tensors import SavedTensor, layer_tensors, normalisation
from trilemma.memory.traits import BlockTraits
from trilemma.models.resolve import load_model

#: Llama 3.1 8B: hidden 4,096, 32 heads and 8 KV heads of 128, feed-forward 14,336.
H, A, KV, D, F = 4096, 32, 8, 128, 14336
FUSED = BlockTraits()


@cache
def facts(name: str, kind: int = 0) -> LayerFacts:
    return kinds(load_model(name))[0][kind]


def kept(name: str, traits: BlockTraits = FUSED, *, attention: str = "flash", kind: int = 0) -> dict[str, SavedTensor]:
    found = layer_tensors(facts(name, kind), traits, attention=attention)
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def tensor(name: str, width: float, **more: Any) -> SavedTensor:
    return SavedTensor(name=name, width=width, **more)


def heads(name: str, width: float, units: int, **more: Any) -> SavedTensor:
    return tensor(name, width, cut="units", units=units, **more)


def test_a_dense_layer_of_fused_kernels() -> None:
    core = ("core_attn",)
    expected = [
        tensor("input_norm.input", H),
        tensor("input_norm.statistics", 1, bits=32),
        tensor(
            "input_norm.output",
            H,
            needed_by=("attention.q", "attention.k", "attention.v"),
            parts=("layernorm",),
            fp8=True,
        ),
        heads("query", A * D, A, op=True),
        heads("key", KV * D, KV),
        heads("value", KV * D, KV, op=True),
        heads("attention_output", A * D, A, op=True, fp8=True),
        heads("log_sum_exp", A, A, bits=32, parts=core, op=True),
        tensor("post_norm.input", H),
        tensor("post_norm.statistics", 1, bits=32),
        tensor("post_norm.output", H, needed_by=("ffn.gate", "ffn.up"), parts=("layernorm",), fp8=True),
        heads("ffn.gate", F, F, parts=("mlp",), op=True),
        heads("ffn.up", F, F, parts=("mlp",)),
        heads("ffn.down_input", F, F, parts=("mlp",), needed_by=("ffn.down",), pointwise=True, fp8=True),
    ]
    for attention in ("flash", "sdpa"):
        assert list(kept("llama-3.1-8b", attention=attention).values()) == expected


#: (traits, attention, tensors that are added or changed, tensors that go)
LLAMA: list[tuple[dict[str, Any], str, list[SavedTensor], set[str]]] = [
    ({"gathered_inputs": True}, "flash",
     [tensor(f"{name}.output", H, cut="whole", needed_by=roles, parts=("layernorm",), fp8=True)
      for name, roles in (("input_norm", ("attention.q", "attention.k", "attention.v")), ("post_norm", ("ffn.gate", "ffn.up")))],
     set()),
    ({"gated": "separate"}, "flash", [heads("ffn.activated", F, F, parts=("mlp",), pointwise=True)], set()),
    ({"hidden_dropout": True}, "flash", [tensor("dropout_masks", 2 * H, bits=8)], set()),
    ({"attention_dropout": True}, "flash", [], set()),
    ({"fused_qkv": True}, "flash",
     [heads("query_key_unrotated", (A + KV) * D, KV), heads("output_input", A * D, A)], set()),
    ({"norm": "written"}, "flash",
     [entry for name in ("input_norm", "post_norm") for entry in (
         tensor(f"{name}.fp32_input", H, bits=32), tensor(f"{name}.statistics", 1, bits=32),
         tensor(f"{name}.normalised", H, needed_by=("norm",), pointwise=True))],
     {"input_norm.input", "post_norm.input"}),
    ({"norm": "written", "wide_norm": True, "norm_copies": 2.0}, "flash",
     [entry for name in ("input_norm", "post_norm") for entry in (
         tensor(f"{name}.fp32_input", 2 * H, bits=32), tensor(f"{name}.statistics", 1, bits=32),
         tensor(f"{name}.normalised", H, bits=32, needed_by=("norm",), pointwise=True))],
     {"input_norm.input", "post_norm.input"}),
    ({"shared_norm_input": True}, "flash", [], {"post_norm.input"}),
    # Eager attention: K and V repeated for all query heads, FP32 probabilities and their copy, and the output as rows alone.
    ({}, "eager",
     [heads("key", A * D, A), heads("value", A * D, A, op=True), heads("output_input", A * D, A, needed_by=("attention.o",)),
      heads("probabilities_fp32", A, A, bits=32, per="pair", parts=("core_attn",)),
      heads("probabilities", A, A, per="pair", parts=("core_attn",), copy=True)], {"log_sum_exp", "attention_output"}),
    ({"soft_cap": True}, "eager",
     [heads("key", A * D, A), heads("value", A * D, A, op=True), heads("output_input", A * D, A, needed_by=("attention.o",)),
      heads("probabilities_fp32", A, A, bits=32, per="pair", parts=("core_attn",)),
      heads("capped_scores", A, A, per="pair", parts=("core_attn",)),
      heads("probabilities", A, A, per="pair", parts=("core_attn",), copy=True)], {"log_sum_exp", "attention_output"}),
    ({"fused_softmax": True}, "eager",
     [heads("key", A * D, A), heads("value", A * D, A, op=True),
      heads("probabilities", A, A, bits=16, per="pair", parts=("core_attn",))], {"log_sum_exp"}),
    # Softmax's output, its mask of a byte and the dropped output: 5 bytes a pair and head (Korthikanti et al., equation 2).
    ({"attention_dropout": True, "fused_softmax": True}, "eager",
     [heads("key", A * D, A), heads("value", A * D, A, op=True),
      heads("probabilities", 2.5 * A, A, bits=16, per="pair", parts=("core_attn",))], {"log_sum_exp"}),
    ({}, "math",
     [heads("output_input", A * D, A, needed_by=("attention.o",)),
      heads("probabilities_fp32", A, A, bits=32, per="pair", parts=("core_attn",))], {"log_sum_exp", "attention_output"}),
]  # fmt: skip


@pytest.mark.parametrize(("traits", "attention", "changed", "gone"), LLAMA)
def test_what_a_way_of_writing_adds(
    traits: dict[str, Any], attention: str, changed: list[SavedTensor], gone: set[str]
) -> None:
    plain, found = kept("llama-3.1-8b"), kept("llama-3.1-8b", BlockTraits(**traits), attention=attention)
    assert found == {name: one for name, one in plain.items() if name not in gone} | {one.name: one for one in changed}


def test_heads_that_are_normalised() -> None:
    """Qwen3 8B: norms of each of 32 query and 8 KV heads of 128 columns."""
    fused, written = kept("qwen3-8b"), kept("qwen3-8b", BlockTraits(norm="written", norm_copies=2.0))
    for name, rows in (("q_norm", 32), ("k_norm", 8)):
        assert fused[f"{name}.input"] == heads(f"{name}.input", 128 * rows, rows)
        assert fused[f"{name}.statistics"] == heads(f"{name}.statistics", rows, rows, bits=32)
        assert written[f"{name}.fp32_input"] == heads(f"{name}.fp32_input", 2 * 128 * rows, rows, bits=32)
        assert written[f"{name}.statistics"] == heads(f"{name}.statistics", rows, rows, bits=32)
        normalised = heads(f"{name}.normalised", 128 * rows, rows, needed_by=("norm",), pointwise=True)
        assert written[f"{name}.normalised"] == normalised
    assert "q_norm.input" not in kept("llama-3.1-8b")


def test_norms_with_biases_keep_mean_and_variance() -> None:
    for traits in (FUSED, BlockTraits(norm="written")):
        assert normalisation("n", 64, traits, layer_norm=True) == [
            tensor("n.input", 64),
            tensor("n.statistics", 2, bits=32),
        ]
    several = normalisation("n", 64, FUSED, layer_norm=True, rows=3, cut="units", units=3)
    assert several == [heads("n.input", 192, 3), heads("n.statistics", 6, 3, bits=32)]


def test_sandwich_norms_feed_nothing() -> None:
    """Gemma 3: norms after attention and feed-forward beside those before."""
    found = kept("gemma-3-12b")
    hidden = load_model("gemma-3-12b").hidden
    for extra in (0, 1):
        assert found[f"sandwich_norm_{extra}.input"] == tensor(f"sandwich_norm_{extra}.input", hidden)
        assert f"sandwich_norm_{extra}.output" not in found
    assert "sandwich_norm_2.input" not in found
    assert "sandwich_norm_0.input" not in kept("llama-3.1-8b")


def test_experts_of_a_mixture() -> None:
    """Qwen3 30B A3B: hidden 2,048, 8 of 128 experts of 768 columns."""
    found = kept("qwen3-30b-a3b")
    every, act = ("moe",), ("moe", "moe_act")
    assert found["post_norm.output"].needed_by[0] == "router"
    expected = [
        tensor("router.scores", 128, bits=32.0, parts=every),
        tensor("router.choices", 2 * 8, bits=32, per="routed", parts=every),
        tensor(
            "experts.input", 2048 * 8, per="routed", parts=every, fp8=True, needed_by=("experts.up", "experts.gate")
        ),
        heads("experts.gate", 768 * 8, 768, per="routed", parts=every, op=True),
        heads("experts.up", 768 * 8, 768, per="routed", parts=every),
        heads(
            "experts.down_input",
            768 * 8,
            768,
            per="routed",
            parts=act,
            needed_by=("experts.down",),
            pointwise=True,
            fp8=True,
        ),
        tensor("experts.output", 2048 * 8, per="routed", parts=every),
    ]
    for one in expected:
        assert found[one.name] == one
    assert not [name for name in found if name.startswith("shared")]
    habits = kept(
        "qwen3-30b-a3b", BlockTraits(router_copies=3.0, routed_scalars=5.0, returned_rows=2.0, wide_router=True)
    )
    assert habits["router.scores"].bits == 96
    assert habits["router.choices"].width == 5 * 8
    assert habits["experts.output"].width == 2 * 2048 * 8
    assert habits["router.fp32_input"] == tensor("router.fp32_input", 2048, bits=32, needed_by=("router",))
    bare = kept("qwen3-30b-a3b", BlockTraits(returned_rows=0.0))
    assert "experts.output" not in bare
    assert "router.fp32_input" not in bare


def test_latent_attention_and_shared_experts() -> None:
    """DeepSeek-V2 Lite: 16 heads of 128 + 64 and 128, latents of 512 + 64; 2 shared experts of 1,408 beside 6 of 64."""
    found = kept("deepseek-v2-lite", kind=1)
    up = ("mla_up_proj",)
    expected = [
        tensor("kv_latent_norm.input", 512 + 64), tensor("kv_latent_norm.statistics", 1, bits=32),
        tensor("kv_latent", 512, needed_by=("mla.kv_b",), fp8=True),
        heads("query", 16 * 192, 16, parts=up, op=True), heads("key", 16 * 192, 16, parts=up),
        heads("value", 16 * 128, 16, parts=up, op=True),
        heads("attention_output", 16 * 128, 16, op=True, fp8=True),
        heads("shared.gate", 2816, 2816, parts=("shared_experts", "moe"), op=True),
        heads("shared.up", 2816, 2816, parts=("shared_experts", "moe")),
        heads("shared.down_input", 2816, 2816, parts=("shared_experts", "moe"), needed_by=("shared.down",), pointwise=True,
              fp8=True),
    ]  # fmt: skip
    for one in expected:
        assert found[one.name] == one
    assert "query_latent" not in found
    assert kept("deepseek-v2-lite", BlockTraits(norm="written"), kind=1)["kv_latent_norm.fp32_input"].width == 512
    plain = kept("deepseek-v2-lite", attention="math", kind=1)
    assert [plain[name].bits for name in ("query", "key", "value")] == [32, 32, 32]
    assert plain["output_input"].needed_by == ("mla.o",)
    # DeepSeek-V3 projects its queries through a latent of 1,536.
    large = kept("deepseek-v3", kind=1)
    assert large["query_latent"] == tensor("query_latent", 1536, needed_by=("mla.q_b",), fp8=True)
    assert large["query_latent_norm.input"] == tensor("query_latent_norm.input", 1536)


def test_recurrent_layers() -> None:
    """Nemotron-H 56B: Mamba-2 of 256 heads of 64 rows and 256 columns in 8 groups: a state a chunk of 256 tokens."""
    model = load_model("nemotron-h-56b")
    at = next(at for at, one in enumerate(kinds(model)[0]) if one.mixer is not None and one.mixer.keeps_state)
    mixer = facts("nemotron-h-56b", at).mixer
    assert mixer is not None
    found = kept("nemotron-h-56b", kind=at)
    inner = 256 * 64
    assert found["scan_output"] == heads("scan_output", inner, 256)
    assert found["output_input"] == heads("output_input", inner, 256)
    assert found["projected"] == heads("projected", inner + (inner + 2 * 8 * 256) + 256, 256, op=True)
    assert found["chunk_states"] == heads("chunk_states", 256 * 64 * 256 / 256, 256, bits=32)
    assert "post_norm.input" not in found  # a layer of one half has one norm


def test_linear_attention_is_as_wide_as_its_values() -> None:
    """Qwen3-Next: 32 value heads of 128 x 128."""
    at = next(
        at for at, one in enumerate(kinds(load_model("qwen3-next-80b-a3b"))[0]) if one.mixer and one.mixer.keeps_state
    )
    found = kept("qwen3-next-80b-a3b", kind=at)
    assert found["scan_output"] == heads("scan_output", 32 * 128, 32)
    assert found["chunk_states"].width == 32 * 128 * 128 / 256


def test_blocks_without_a_gate() -> None:
    """Nemotron-H's squared ReLU: what goes in and what comes out, and each intermediate that is written out."""
    model = load_model("nemotron-h-56b")
    at = next(at for at, one in enumerate(kinds(model)[0]) if one.mixer is None)
    width = getattr(facts("nemotron-h-56b", at).ffn, "intermediate")  # noqa: B009
    found = kept("nemotron-h-56b", BlockTraits(activation_copies=3.0), kind=at)
    assert found["ffn.pre_activation"] == heads("ffn.pre_activation", 3 * width, width, parts=("mlp",), op=True)
    assert found["post_norm.input"].width == model.hidden
    assert "input_norm.input" not in found
    assert "ffn.gate" not in found


def test_compressed_attention_is_six_rows() -> None:
    model = load_model("deepseek-v4-flash")
    found = kept("deepseek-v4-flash")
    assert found["compressed_attention"] == tensor("compressed_attention", 6 * model.hidden, cut="whole")


def test_experts_of_narrower_rows_keep_what_narrows_them() -> None:
    plain = facts("qwen3-30b-a3b")
    narrow = replace(plain, ffn=replace(plain.ffn, hidden=512))  # type: ignore[type-var]
    found = {one.name: one for one in layer_tensors(narrow, FUSED, attention="flash")}
    assert found["latent_input"] == tensor("latent_input", 2 * 512, parts=("moe",))
    assert found["experts.input"].width == 512 * 8
    assert found["experts.output"].width == 512 * 8
    assert "latent_input" not in kept("qwen3-30b-a3b")
