"""Encoders (BERT, RoBERTa, XLM-RoBERTa): counted, kept without a cache, told as documents a second."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.formats import catalogue as formats
from trilemma.models.architecture import Model
from trilemma.models.read import model_from_config
from trilemma.models.resolve import load_model
from trilemma.quantities import MIB


def stored(model: Model) -> float:
    return sum(tensor.bytes for tensor in model.tensors)


def test_layers_keep_nothing_and_see_both_ways() -> None:
    model = load_model("BAAI/bge-m3")
    assert model.max_positions == 8192  # 8,194 rows, of which the first two stand before the text
    (mixer,) = model.mixers
    assert mixer.generates_nothing
    assert mixer.cache_law(tp=1, kv_format=formats.get("fp16")).bytes_per_token == 0
    decoder = next(iter(load_model("qwen3-0.6b").mixers))
    assert not decoder.generates_nothing
    assert mixer.prefill_flops(512, 0, tp=1) == 2 * 16 * (64 + 64) * 512 * 512


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("nomic-ai/nomic-embed-text-v1.5", 136_731_648),  # "137M params"
        ("answerdotai/ModernBERT-base", 149_014_272),  # "149M"
    ],
)
def test_encoders_with_rotary_positions_have_the_weights_published(name: str, parameters: int) -> None:
    model = load_model(name)
    assert sum(tensor.elements for tensor in model.tensors) == parameters
    assert (model.max_positions, model.unknown_fields) == (8192, ())
    assert all(mixer.generates_nothing for mixer in model.mixers)


def test_windows_of_an_encoder_bound_what_it_sees() -> None:
    """transformers: models/modernbert, global_attn_every_n_layers 3, local_attention 128: 8 of 22 layers see a whole text."""
    mixers = load_model("gte-modernbert-base").mixers
    assert {mixer.window: count for mixer, count in mixers.items()} == {None: 8, 128: 14}
    whole, near = (next(one for one in mixers if one.window == window) for window in (None, 128))
    assert near.prefill_flops(8192, 0, tp=1) * 64 == whole.prefill_flops(8192, 0, tp=1)
    assert near.prefill_flops(64, 0, tp=1) == whole.prefill_flops(64, 0, tp=1)
    long, short = (tl.fit("gte-modernbert-base", "l4", isl=isl).speed.input_tokens_per_s.value for isl in (8192, 512))
    assert 0.3 < long / short < 1


def test_a_gguf_is_as_large_as_one_that_was_published() -> None:
    """github.com/lmstudio-ai/lmstudio-bug-tracker issue 1546: bge-m3 in Q8_0, "file size = 599.70 MiB (8.86 BPW)"."""
    assert stored(load_model("bge-m3:q8_0")) / MIB == pytest.approx(599.70, abs=0.05)


def test_scores_follow_the_labels_of_a_classifier() -> None:
    config = {
        "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 384, "intermediate_size": 1536,
        "num_attention_heads": 12, "num_hidden_layers": 6, "vocab_size": 30522, "max_position_embeddings": 512,
    }  # fmt: skip
    plain = sum(t.elements for t in model_from_config({**config, "architectures": ["BertModel"]}, name="a").tensors)
    for labels, told in ((2, {}), (1, {"id2label": {"0": "LABEL_0"}}), (3, {"id2label": dict.fromkeys("012", "x")})):
        scored = sum(t.elements for t in model_from_config({**config, **told}, name="a").tensors)
        assert scored - plain == labels * 385
    for hostile in (["x"], 7, {}, "LABEL"):
        assert model_from_config({**config, "id2label": hostile}, name="a").layers


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve BAAI/bge-m3",
        "vllm serve BAAI/bge-reranker-v2-m3 --task score",
        "llama-server -hf gpustack/bge-m3-GGUF:Q8_0 --embedding",
        "ollama run mxbai-embed-large",
        "ollama run nomic-embed-text",
        "vllm serve nomic-ai/nomic-embed-text-v1.5 --trust-remote-code",
        "vllm serve Alibaba-NLP/gte-modernbert-base",
    ],
)
def test_engines_tell_documents_and_hold_no_cache(command: str) -> None:
    answer = tl.check(command, gpu="l4", isl=512).to_dict()
    assert answer["verdict"]["stage"] == "ok"
    assert answer["memory"]["total_bytes"] < 4 * 2**30  # no pool that fills the card
    assert answer["speed"]["documents_per_s"]["value"] > 10
    assert "tpot_ms" not in answer["speed"]


def test_work_stays_below_the_card() -> None:
    """bge-m3 multiplies 302e6 parameters a token; an L4 does 121 TFLOP/s of dense FP16."""
    rate = tl.fit("bge-m3", "l4", isl=512).to_dict()["speed"]["input_tokens_per_s"]["value"]
    assert 0.15 * 121e12 < rate * 2 * 302e6 < 121e12


def test_float32_checkpoints_are_converted_to_sixteen_bits() -> None:
    """convert_hf_to_gguf.py: weights of XLM-RoBERTa in FP16, of which the embedding stays with the host."""
    lines = tl.fit("bge-m3", "l4", engine="llama.cpp", isl=512).to_dict()["memory"]["items"]
    weights = next(line["bytes"] for line in lines if line["name"] == "weights")
    assert weights == pytest.approx(2 * (567_754_752 - 264_393_728), rel=0.01)


def test_engines_without_rules_for_encoders_refuse() -> None:
    with pytest.raises(InputError, match="no rules of SGLang for encoders are known here"):
        tl.fit("bge-m3", "l4", engine="sglang")
    with pytest.raises(InputError, match="generates no tokens to go by"):
        tl.plan("bge-m3", "l4", isl=512, osl=1)


@pytest.mark.parametrize(
    ("model", "engine", "words"),
    [
        ("bge-m3", "llama.cpp", "--embeddings"),  # tools/server/README.md: --embedding restricts the server to it
        ("BAAI/bge-reranker-v2-m3", "llama.cpp", "--reranking"),
        ("Qwen/Qwen3-Embedding-0.6B", "sglang", "--is-embedding"),
        ("bge-m3", "ollama", "'a document'"),  # cmd/cmd.go: "embedding models require input text"
        ("bge-m3", "ollama@0.12.9", "bge-m3"),
        ("qwen3-0.6b", "llama.cpp", "Qwen3-0.6B.gguf"),
    ],
)
def test_commands_ask_for_what_the_model_answers(model: str, engine: str, words: str) -> None:
    answer = tl.fit(model, "l4", engine=engine)
    assert answer.to_dict()["command"].endswith(words)
    name = engine.partition("@")[0]
    if name != "ollama":
        assert tl.check(answer.to_dict()["command"], gpu="l4").to_dict()["command"].endswith(words)
    assert ("POST /api/embed" in str(answer)) is (engine == "ollama@0.12.9")


def test_nothing_that_generates_no_tokens_is_simulated() -> None:
    with pytest.raises(InputError, match="generates no tokens to go by; ask fit"):
        tl.simulate("bge-m3", "l4", arrivals="poisson:2", isl=512, osl=64)
