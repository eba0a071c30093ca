"""Number formats against cards, through the commands: refused or told with what to use instead, never silently another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trilemma.cli.main import main


def _asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words[:1], "--json", *words[1:]])
    return code, json.loads(capsys.readouterr().out)


def _told(document: dict[str, Any], code: str) -> list[str]:
    return [one["message"] for one in document["warnings"] if one["code"] == code]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto"])
@pytest.mark.parametrize("card", ["t4", "v100-sxm2-32gb", "rtx-2080-ti"])
def test_vllm_refuses_bfloat16_below_ampere(capsys: pytest.CaptureFixture[str], card: str, dtype: str) -> None:
    """vllm/platforms/cuda.py: below compute capability 8.0 bfloat16 by name is an error, "auto" becomes float16."""
    command = ("vllm", "serve", "Qwen/Qwen3-0.6B", "--dtype", dtype, "--gpu-memory-utilization", "0.85")
    code, document = _asked(capsys, "check", "--gpu", card, "--", *command)
    assert document["fits"] is (dtype != "bfloat16")
    assert code == (1 if dtype == "bfloat16" else 0)
    if dtype == "bfloat16":
        (why,) = document["refused"]
        assert "compute capability 8" in why
        assert "--dtype float16" in why
    assert bool(_told(document, "bfloat16-as-float16")) is (dtype == "auto")


def test_sglang_casts_bfloat16_below_ampere(capsys: pytest.CaptureFixture[str]) -> None:
    """model_runner.py: "Compute capability below sm80. Use float16 due to lack of bfloat16 support." """
    command = ("python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-0.6B", "--dtype", "bfloat16")
    code, document = _asked(capsys, "check", "--gpu", "t4", "--", *command)
    assert code == 0
    assert "SGLang runs the model in float16" in _told(document, "bfloat16-as-float16")[0]


def test_bfloat16_is_nothing_to_tell_from_ampere_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = _asked(
        capsys, "check", "--gpu", "l4", "--", "vllm", "serve", "Qwen/Qwen3-0.6B", "--dtype", "bfloat16"
    )
    assert code == 0
    assert not _told(document, "bfloat16-as-float16")


@pytest.mark.parametrize(
    ("precision", "word", "bytes_a_parameter"),
    [("fp32", "float32", 4), ("float32", "float32", 4), ("fp16", "float16", 2), ("bf16", None, 2), ("none", None, 2)],
)
def test_unquantised_precisions_are_what_they_say(
    capsys: pytest.CaptureFixture[str], precision: str, word: str | None, bytes_a_parameter: int
) -> None:
    """Llama 3.1 8B has 8.03 billion parameters (its model card): 32.1 GB in FP32. The command says so to the engine."""
    code, document = _asked(
        capsys, "fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--precision", precision, "--context", "8192"
    )
    assert code == 0
    assert document["memory"]["items"][0]["bytes"] == pytest.approx(8.03e9 * bytes_a_parameter, rel=3e-3)
    assert ("--dtype" in document["command"]) is (word is not None)
    assert word is None or f"--dtype {word}" in document["command"]


def test_fp32_products_run_at_the_rate_of_fp32(capsys: pytest.CaptureFixture[str]) -> None:
    """67 against 989 TFLOP/s on H100 SXM (NVIDIA datasheet): prefill of a long prompt takes many times as long."""
    load = ("--isl", "8192", "--osl", "2", "--concurrency", "1")
    first = [
        _asked(capsys, "fit", "llama-3.1-8b", "--gpu", "h100-sxm", *load, "--precision", one)[1]["speed"]["ttft_ms"][
            "value"
        ]
        for one in ("bf16", "fp32")
    ]
    assert first[1] > 6 * first[0]


@pytest.mark.parametrize(
    ("card", "precision", "words"),
    [
        ("h100-sxm", "mxfp8", "no mxfp8 matrix units"),
        ("h100-sxm", "nvfp4", "nvfp4 weights are expanded to 16 bits"),
        ("h100-sxm", "mxfp6", "no mxfp6 matrix units, and no kernel is known"),
        ("a100-sxm4-80gb", "fp8", "its own units multiply w8a8"),
        ("l40s", "nvfp4", "its own units multiply fp8"),
        ("mi300x", "mxfp8", "no mxfp8 matrix units, and no kernel is known"),
        ("mi300x", "mxfp4", "mxfp4 weights are expanded to 16 bits"),
        ("h100-sxm", "fp8", None),
        ("h100-sxm", "awq", None),
        ("a100-sxm4-80gb", "w8a8", None),
        ("b200-sxm", "mxfp8", None),
        ("b200-sxm", "nvfp4", None),
        ("mi355x", "mxfp6", None),
    ],
)
def test_formats_that_a_card_expands_are_told(
    capsys: pytest.CaptureFixture[str], card: str, precision: str, words: str | None
) -> None:
    _, document = _asked(capsys, "fit", "llama-3.1-8b", "--gpu", card, "--precision", precision, "--context", "4096")
    told = _told(document, "format-expanded")
    assert len(told) == (words is not None)
    assert words is None or words in told[0]


def test_expanded_formats_are_not_priced_as_faster(capsys: pytest.CaptureFixture[str]) -> None:
    """Prefill is bound by products: MXFP8 gains nothing on Hopper and does on Blackwell."""
    load = ("--isl", "8192", "--osl", "2", "--concurrency", "1")

    def prefill(card: str, precision: str) -> float:
        found = _asked(capsys, "fit", "llama-3.1-8b", "--gpu", card, *load, "--precision", precision)[1]
        return float(found["speed"]["ttft_ms"]["value"])

    assert prefill("h100-sxm", "mxfp8") > 0.97 * prefill("h100-sxm", "bf16")
    assert prefill("b200-sxm", "mxfp8") < 0.9 * prefill("b200-sxm", "bf16")


_TRAINED = ("--train", "4096", "--global-batch", "64")


@pytest.mark.parametrize(
    ("card", "precision", "refused"),
    [
        ("h100-sxm", "mxfp8", "mxfp8 matrix units, which H100 SXM5 80GB has not; use an fp8 recipe"),
        ("h100-sxm", "nvfp4", "nvfp4 matrix units"),
        ("a100-sxm4-80gb", "fp8", "fp8 matrix units, which A100 SXM4 80GB has not; use a 16-bit recipe"),
        ("mi300x", "mxfp8", "mxfp8 matrix units"),
        ("rtx-5090", "mxfp8", "below 12"),  # Transformer Engine is_mxfp8_available: 10.0 <= capability < 12.0
        ("h100-sxm", "fp8", None),
        ("b200-sxm", "mxfp8", None),
        ("b200-sxm", "nvfp4", None),
        ("mi300x", "fp8", None),
        ("a100-sxm4-80gb", "bf16", None),
    ],
)
def test_training_recipes_without_units_are_refused(
    capsys: pytest.CaptureFixture[str], card: str, precision: str, refused: str | None
) -> None:
    code, document = _asked(capsys, "fit", "llama-3.2-1b", "--gpu", f"{card}:8", *_TRAINED, "--precision", precision)
    if refused is None:
        assert "refused" not in document
        return
    assert code == 1
    assert refused in document["refused"][0]
    assert main(["plan", "llama-3.2-1b", "--gpu", f"{card}:8", *_TRAINED, "--precision", precision]) == 2
    assert refused in capsys.readouterr().err
