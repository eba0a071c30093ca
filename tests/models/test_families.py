"""Readers of families: counts of models outside the catalogue, shapes, cuts and what a reader says of gaps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from trilemma.errors import InputError
from trilemma.models import catalogue, families
from trilemma.models.architecture import DenseFfn, ExpertFfn, Model, Tensor
from trilemma.models.attention import LatentAttention, RecurrentState, SoftmaxAttention
from trilemma.models.parameters import count
from trilemma.models.read import model_from_config
from trilemma.models.resolve import load_model

_OTHERS: dict[str, Any] = json.loads((Path(__file__).parent / "family_configs.json").read_text(encoding="utf-8"))[
    "models"
]
LLAMA = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def read(**changes: Any) -> Model:
    return model_from_config({**LLAMA, **changes}, name="test")


def tensor(model: Model, end: str, *, layer: int | None = None) -> Tensor:
    return next(t for t in model.tensors if t.name.endswith(end) and (layer is None or t.layer == layer))


@pytest.mark.parametrize("name", _OTHERS)
def test_count_of_a_family_outside_the_catalogue(name: str) -> None:
    row = _OTHERS[name]
    model = model_from_config(row["config"], name=name)
    assert abs(count(model).total / row["total"] - 1) < 1e-3
    assert model.unknown_fields == ()
    assert len(model.layers) >= row["config"].get("num_hidden_layers", 1)


def test_every_reader_is_exercised() -> None:
    """A family without an entry in the catalogue or in family_configs.json would be untested."""
    used = {row["config"]["model_type"] for row in _OTHERS.values()} | {
        part.get("model_type")
        for name in catalogue.names()
        for config in [catalogue.config(name)]
        for part in (config, config.get("text_config") or {})
    }
    readers = {families.find(kind) for kind in used if kind}
    assert {families.find(kind) for kind in families.known()} - readers <= {
        families.find(kind) for kind in ("olmo", "arcee", "hunyuan_v1_dense", "gemma3n")
    }


def test_small_families_read() -> None:
    """Two-matrix feed-forwards, norms without weights, norms of single heads."""
    assert not any(t.role == "norm" for t in read(model_type="olmo").tensors)
    assert not any(t.role == "ffn.gate" for t in read(model_type="arcee").tensors)
    assert tensor(read(model_type="hunyuan_v1_dense"), "q_norm.weight").shape == (128,)


def test_gemma_3n_streams_and_shared_caches() -> None:
    """E4B: 35 layers of which the last 15 keep no cache, an embedding of 256 for each layer, four streams."""
    model = model_from_config({"model_type": "gemma3n_text", "num_hidden_layers": 35}, name="gemma-3n-E4B")
    assert [layer.index for layer in model.layers if getattr(layer.mixer, "shares_cache", False)] == list(range(20, 35))
    assert tensor(model, "embed_tokens_per_layer.weight").shape == (262144, 35 * 256)
    assert sum(t.name.startswith("model.language_model.altup_") for t in model.tensors) == 6
    assert {"hidden_size", "num_kv_shared_layers", "laurel_rank"} <= {text.split()[0] for text in model.assumptions}


def test_llama_tensors_and_cuts() -> None:
    model = read()
    q, k, o = (tensor(model, f"{part}_proj.weight", layer=3) for part in "qko")
    assert (q.shape, q.shard, q.shard_units, q.name) == (
        (4096, 4096),
        "column",
        32,
        "model.layers.3.self_attn.q_proj.weight",
    )
    assert (k.shape, k.shard, k.shard_units) == ((1024, 4096), "column", 8)
    assert (o.shape, o.shard, o.shard_units) == ((4096, 4096), "row", 32)
    down = tensor(model, "down_proj.weight", layer=0)
    assert (down.shape, down.shard, down.shard_units) == ((4096, 14336), "row", 14336)
    head, embedding = tensor(model, "lm_head.weight"), tensor(model, "embed_tokens.weight")
    assert (head.part, head.shard, embedding.part, embedding.shard) == ("head", "vocab", "embedding", "vocab")
    assert all(t.shard == "none" for t in model.tensors if t.role == "norm")


def test_a_tied_head_is_no_tensor() -> None:
    model = read(tie_word_embeddings=True)
    assert model.tied_embeddings
    assert not any(t.role == "head" for t in model.tensors)


def test_latent_attention_down_projections_are_whole_on_every_rank() -> None:
    model = load_model("deepseek-v3.2")
    for end in ("q_a_proj.weight", "kv_a_proj_with_mqa.weight", "indexer.wq_b.weight", "indexer.wk.weight"):
        assert tensor(model, end).shard == "none"
    for end in ("q_b_proj.weight", "kv_b_proj.weight"):
        assert (tensor(model, end).shard, tensor(model, end).shard_units) == ("column", 128)
    assert isinstance(model.layers[0].ffn, DenseFfn)
    assert isinstance(model.layers[3].ffn, ExpertFfn)
    mixer = model.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert (mixer.index_heads, mixer.index_dim, mixer.index_topk) == (64, 128, 2048)


def test_experts_are_one_stack() -> None:
    model = load_model("mixtral-8x7b")
    up = tensor(model, "experts.0.w3.weight", layer=0)
    assert (up.experts, up.shape, up.shard, up.shard_units) == (8, (8, 14336, 4096), "column", 14336)
    router = tensor(model, "gate.weight", layer=0)
    assert (router.shape, router.shard, router.quantizable) == ((8, 4096), "none", False)


def test_hybrids_keep_their_order() -> None:
    qwen = load_model("qwen3.5-27b")
    assert [isinstance(layer.mixer, SoftmaxAttention) for layer in qwen.layers[:8]] == [False, False, False, True] * 2
    nemotron = load_model("nemotron-3-nano-30b-a3b")
    kinds = [type(layer.mixer or layer.ffn) for layer in nemotron.layers[:6]]
    assert kinds == [RecurrentState, ExpertFfn, RecurrentState, ExpertFfn, RecurrentState, SoftmaxAttention]
    assert all((layer.mixer is None) != (layer.ffn is None) for layer in nemotron.layers)


def test_a_layer_may_be_absent() -> None:
    model = load_model("llama-3.3-nemotron-super-49b")
    without = [layer for layer in model.layers if layer.mixer is None]
    assert len(without) == 31
    assert not any(t.role.startswith("attention") for t in model.tensors if t.layer == without[0].index)


def test_latent_experts_run_narrow() -> None:
    model = load_model("nemotron-3-super-120b-a12b")
    up = next(t for t in model.tensors if t.role == "experts.up")
    assert up.shape == (512, 2688, 1024)
    assert [type(layer.mixer or layer.ffn) for layer in model.mtp_layers] == [SoftmaxAttention, ExpertFfn]


def test_routed_experts_of_kimi_k3_run_at_a_width_of_their_own() -> None:
    """Kimi-K3 (config.json in ai-dynamo/aiconfigurator @095f58a): 2.8T parameters on its card, 5.5T at the model's width."""
    full = [*range(4, 93, 4), 93]
    config = {
        "model_type": "kimi_linear", "hidden_size": 7168, "intermediate_size": 33792, "num_hidden_layers": 93,
        "num_attention_heads": 96, "num_key_value_heads": 96, "vocab_size": 163840, "max_position_embeddings": 1048576,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_intermediate_size": 3072, "num_experts": 896,
        "num_experts_per_token": 16, "num_shared_experts": 2, "routed_expert_hidden_size": 3584,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "linear_attn_config": {"head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4, "full_attn_layers": full},
    }  # fmt: skip
    model = model_from_config(config, name="kimi-k3")
    assert 2.75e12 < count(model).total < 2.85e12
    assert next(t.shape for t in model.tensors if t.role == "experts.up") == (896, 3072, 3584)


def test_gemma_4_global_layers_have_their_own_heads() -> None:
    model = load_model("gemma-4-31b")
    mixers = {(m.kv_heads, m.k_dim, m.window) for m in model.mixers if isinstance(m, SoftmaxAttention)}
    assert mixers == {(16, 256, 1024), (4, 512, None)}
    last = model.layers[-1].index
    assert not any(t.role == "attention.v" for t in model.tensors if t.layer == last)


def test_vision_towers_are_a_part_of_their_own() -> None:
    model = load_model("qwen3-vl-8b")
    assert model.multimodal
    assert model.vision["hidden"] == 1152
    assert count(model).vision == sum(t.elements for t in model.of_part("vision")) > 5e8
    assert count(model).active == count(model).total - count(model).vision


def test_a_tower_of_unknown_sizes_is_named() -> None:
    model = read(
        vision_config={"model_type": "brand_new_tower", "depth": 12}, architectures=["XForConditionalGeneration"]
    )
    assert "vision_config.depth" in model.unknown_fields
    assert any("vision tower" in text for text in model.assumptions)


def test_an_unknown_wrapper_of_a_known_text_part_is_answered_and_named() -> None:
    model = model_from_config({"model_type": "brand_new_vlm", "text_config": LLAMA}, name="test")
    assert count(model).total == 8_030_261_248
    assert any("brand_new_vlm" in text for text in model.unknown_fields)


def test_an_unknown_type_is_refused_with_its_neighbours() -> None:
    with pytest.raises(InputError, match=r"'qwen9'.*near: qwen"):
        read(model_type="qwen9")
    with pytest.raises(InputError, match="model_type"):
        read(model_type=None)


def test_unknown_keys_that_say_something_are_named() -> None:
    model = read(extra_memory_heads=4, rope_theta=1e6, brand_new_flag=False, brand_new_list=[])
    assert model.unknown_fields == ("extra_memory_heads",)


def test_gaps_are_filled_with_the_family_default_and_listed() -> None:
    model = model_from_config(
        {
            "model_type": "qwen2_moe",
            "num_hidden_layers": 24,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "vocab_size": 151936,
        },
        name="fragment",
    )
    assert count(model).total == 14_315_784_192
    assert any(text.startswith("num_experts is not given; taken as 60") for text in model.assumptions)
    assert any("torch_dtype" in text for text in model.assumptions)


def test_a_large_mixture_reads_fast() -> None:
    """A 78-layer mixture in well under the 30 ms that a search may spend on its model (processor time, best of five)."""
    config = catalogue.config("glm-5")
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        model_from_config(config, name="glm-5")
        best = min(best, time.process_time() - start)
    assert best < 0.03


def test_a_multimodal_class_without_its_tower_gets_the_usual_one_and_says_so() -> None:
    """Kimi-VL on the hub has 16,407,657,776 parameters (safetensors metadata of moonshotai/Kimi-VL-A3B-Instruct)."""
    config = {key: value for key, value in catalogue.config("kimi-vl-a3b").items() if key != "vision_config"}
    model = model_from_config(config, name="fragment")
    assert abs(count(model).total / 16_407_657_776 - 1) < 1e-6
    assert any("tower of kimi_vl" in text for text in model.assumptions)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("deepseek-v3", (8, 4)), ("deepseek-r1-nvfp4", (8, 4)), ("deepseek-v3.2", (8, 4)), ("deepseek-v2", (8, 3)),
     ("deepseek-v2-lite", (1, 1)), ("kimi-k2", (1, 1)), ("qwen3-235b-a22b", (1, 1))],
)  # fmt: skip
def test_router_groups(name: str, groups: tuple[int, int]) -> None:
    """Groups and chosen groups of the published configurations; one group is no limit."""
    experts = next(layer.ffn for layer in load_model(name).layers if isinstance(layer.ffn, ExpertFfn))
    assert (experts.groups, experts.top_groups) == groups


@pytest.mark.parametrize("change", [{"n_group": 7}, {"topk_group": 9}, {"n_group": 64, "topk_group": 1}])
def test_router_groups_that_cannot_be(change: dict[str, int]) -> None:
    config = {key: value for key, value in catalogue.config("deepseek-v3").items() if not key.startswith("_")}
    with pytest.raises(InputError, match="groups"):
        model_from_config(config | change, name="x")


def test_a_router_that_states_groups_and_does_not_use_them() -> None:
    config = {key: value for key, value in catalogue.config("deepseek-v3").items() if not key.startswith("_")}
    experts = model_from_config(config | {"topk_method": "greedy"}, name="x").layers[-1].ffn
    assert isinstance(experts, ExpertFfn)
    assert experts.groups == 1
