"""Bytes autograd saves in real Transformers models, counted with hooks, against the sets of saved tensors."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.measured.activations.judge import check_activations
from trilemma.models import catalogue

pytestmark = pytest.mark.filterwarnings("ignore")

_LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 704, "vocab_size": 1000, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip
_MHA = {**_LLAMA, "num_key_value_heads": 8}
_GELU = {**_LLAMA, "model_type": "starcoder2", "use_bias": True, "hidden_act": "gelu", "tie_word_embeddings": True}
_GATED_GELU = {**_LLAMA, "hidden_act": "gelu"}
_MOE = {**_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
_QK_NORM = {**_LLAMA, "model_type": "qwen3", "head_dim": 32}
_FINE_MOE = {
    **_QK_NORM, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 96,
    "norm_topk_prob": True,
}  # fmt: skip
_BIASED = {**_LLAMA, "model_type": "qwen2"}
_WINDOWED = {**_LLAMA, "model_type": "mistral", "sliding_window": None}

_SHAPES = [
    ("GQA SwiGLU sdpa BF16", _LLAMA, {}),
    ("GQA SwiGLU eager BF16", _LLAMA, {"attention": "eager"}),
    ("GQA SwiGLU sdpa FP32", _LLAMA, {"dtype": "fp32"}),
    ("GQA SwiGLU sdpa BF16 checkpointed", _LLAMA, {"checkpointed": True}),
    ("GQA SwiGLU eager FP32 checkpointed", _LLAMA, {"checkpointed": True, "dtype": "fp32", "attention": "eager"}),
    ("MHA SwiGLU sdpa BF16", _MHA, {}),
    ("MHA SwiGLU eager BF16", _MHA, {"attention": "eager"}),
    ("MHA SwiGLU eager FP32", _MHA, {"attention": "eager", "dtype": "fp32"}),
    ("GQA GELU LayerNorm sdpa BF16", _GELU, {}),
    ("GQA GELU LayerNorm eager FP32", _GELU, {"attention": "eager", "dtype": "fp32"}),
    ("GQA gated GELU sdpa BF16", _GATED_GELU, {}),
    ("MoE top 2 of 8 sdpa BF16", _MOE, {}),
    ("MoE top 2 of 8 checkpointed", _MOE, {"checkpointed": True}),
    ("MoE top 4 of 8, narrow experts, QK norm", _FINE_MOE, {}),
    ("QK norm sdpa BF16", _QK_NORM, {}),
    ("biases sdpa BF16", _BIASED, {}),
    ("Mistral sdpa FP32", _WINDOWED, {"dtype": "fp32"}),
    ("one long sequence", _LLAMA, {"micro_batch": 1, "seq": 768}),
    ("four short sequences", _MHA, {"micro_batch": 4, "seq": 48}),
]


@pytest.mark.parametrize(("config", "options"), [case[1:] for case in _SHAPES], ids=[case[0] for case in _SHAPES])
def test_predicted_within_one_percent_of_counted(config: dict[str, object], options: dict[str, object]) -> None:
    check = check_activations(config, layers=3, **{"seq": 192, **options})  # type: ignore[arg-type]
    assert check.measured_bytes > 1e6
    assert abs(check.error) <= 0.01


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("gpt2", "sdpa"), ("gpt-neox-20b", "sdpa"), ("phi-4", "sdpa"), ("gemma-3-4b", "sdpa"), ("gemma-2-9b", "eager"),
        ("olmo-2-13b", "sdpa"), ("command-r", "sdpa"), ("deepseek-v2-lite", "sdpa"), ("deepseek-v3", "sdpa"),
        ("starcoder2-7b", "eager"), ("qwen3-30b-a3b", "eager"), ("granite-3.3-8b", "sdpa"),
    ],
)  # fmt: skip
def test_families_of_the_catalogue_made_small(name: str, attention: str) -> None:
    check = check_activations(catalogue.config(name), attention=attention, seq=128)  # type: ignore[arg-type]
    assert abs(check.error) <= 0.01


@pytest.mark.parametrize(("name", "measured"), [("llama-3-8b", 57_124_487_180), ("llama-3-70b", 265_299_329_036)])
def test_whole_models_without_data(name: str, measured: int) -> None:
    check = check_activations(catalogue.config(name), fake=True, micro_batch=1, seq=8192)
    assert check.measured_bytes == measured
    assert check.predicted_bytes == pytest.approx(measured, abs=16)


@pytest.mark.slow
def test_whole_70b_checkpointed() -> None:
    check = check_activations(catalogue.config("llama-3-70b"), fake=True, micro_batch=1, seq=8192, checkpointed=True)
    assert check.measured_bytes == 15_477_145_612
    assert check.predicted_bytes == pytest.approx(check.measured_bytes, abs=16)


def test_fake_and_real_agree() -> None:
    small = {**_LLAMA, "max_position_embeddings": 512}
    real = check_activations(small, layers=3, hidden=256, micro_batch=1, seq=128)
    fake = check_activations(small, fake=True, micro_batch=1, seq=128)
    assert fake.measured_bytes == pytest.approx(real.measured_bytes, abs=8 + 4 * 128 * 1048)


def test_command_prints_both_and_exits_by_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["measure", "activations", "llama-3.1-8b", "--seq", "64"]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/activations@1"
    assert document["measured_bytes"] == sum(row["bytes"] for row in document["measured"])
    assert document["predicted_bytes"] == sum(row["bytes"] * row["layers"] for row in document["predicted"])
    assert main([*arguments, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert f"{document['measured_bytes']:,}" in shown
    assert "log_probabilities" in shown


def test_unknown_models_and_missing_kernels_are_errors() -> None:
    with pytest.raises(InputError, match="cannot build"):
        check_activations({**_LLAMA, "model_type": "gemma2", "head_dim": 32})
    with pytest.raises(InputError):
        check_activations({"model_type": "llama"})
