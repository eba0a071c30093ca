"""FLOPs and bytes of one decode step as documents print them, counted by hand from the published shapes of two models."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from asking import document
from trilemma.hardware.catalogue import find
from trilemma.timing.serving_terms import shipped

#: Llama 3.1 8B (config.json): 32 layers, hidden 4,096, 32 heads and 8 KV heads of 128, feed-forward 14,336, 128,256 tokens.
_LAYERS, _HIDDEN, _Q, _KV, _FFN, _VOCAB = 32, 4096, 4096, 1024, 14336, 128256
_LINEAR = _HIDDEN * (2 * _Q + 2 * _KV) + 3 * _HIDDEN * _FFN

answer = cache(document)


def operators(words: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in answer(words)["speed"]["operators"]}


def near(value: float) -> Any:
    return pytest.approx(value, rel=2e-5)


@pytest.mark.parametrize(("tp", "batch"), [(1, 8), (2, 4), (4, 32)])
def test_a_dense_step(tp: int, batch: int) -> None:
    words = f"fit llama-3.1-8b --gpu h100-sxm:{tp} --tp {tp} --isl 1000 --osl 300 --concurrency {batch}"
    found = operators(words)
    dense = found["dense"]
    assert dense["flops"] == near(2 * batch * _LAYERS * _LINEAR / tp)
    # Inputs and outputs of four fused products: q, k and v; out; gate and up; down.
    rows = _HIDDEN + (_Q + 2 * _KV) / tp + _Q / tp + _HIDDEN + _HIDDEN + 2 * _FFN / tp + _FFN / tp + _HIDDEN
    assert dense["bytes"] == near(2 * _LAYERS * (_LINEAR / tp + batch * rows))
    head = found["lm_head"]
    assert head["flops"] == near(2 * batch * _HIDDEN * _VOCAB / tp)
    assert head["bytes"] == near(2 * (_HIDDEN * _VOCAB / tp + batch * (_HIDDEN + _VOCAB / tp)))
    attention, context = found["attention"], 1000 + 300 / 2
    assert attention["flops"] == near(4 * batch * _LAYERS * _Q / tp * context)
    assert attention["bytes"] == near(2 * batch * _LAYERS * 2 * _KV / tp * context)


def test_a_cache_of_eight_bits_is_read_at_half_the_bytes() -> None:
    words = "fit llama-3.1-8b --gpu h100-sxm --isl 1000 --osl 300 --concurrency 8"
    wide, narrow = (operators(words + more)["attention"] for more in ("", " --kv-dtype fp8"))
    assert narrow["bytes"] == near(wide["bytes"] / 2)
    assert narrow["flops"] == near(wide["flops"])


def test_weights_of_eight_bits_are_read_at_half_the_bytes() -> None:
    words = "fit llama-3.1-8b --gpu h100-sxm --isl 1000 --osl 300 --concurrency 1"
    wide, narrow = (operators(words + more) for more in ("", " --precision fp8"))
    assert narrow["dense"]["bytes"] == pytest.approx(wide["dense"]["bytes"] / 2, rel=0.01)
    assert narrow["lm_head"]["bytes"] == near(wide["lm_head"]["bytes"])


def test_experts_of_a_step() -> None:
    # Qwen3 30B A3B: 48 layers, hidden 2,048, 8 of 128 experts of three matrices of 768.
    words = "fit qwen3-30b-a3b --gpu h200-sxm --isl 1000 --osl 300 --concurrency 16"
    experts = next(one for name, one in operators(words).items() if name.startswith("expert"))
    matrix = 3 * 2048 * 768
    # 128 choices meet 128 · (1 − (120/128)^(16 · evenness)) experts; each multiplies 16 rows, the least of a tensor core's
    # instruction. The evenness of the routing is the one that runs of vLLM on this card were fitted with.
    evenness = shipped().factors("vllm", find("h200-sxm"), "16-bit bf16")["routing_evenness"]
    assert 0.5 < evenness <= 1
    met = 128 * (1 - (1 - 8 / 128) ** (16 * evenness))
    assert experts["flops"] == pytest.approx(2 * 48 * matrix * 16 * met, rel=0.01)
    assert experts["bytes"] == pytest.approx(2 * 48 * matrix * met, rel=0.02)


def test_each_stage_does_its_part_of_the_work() -> None:
    one, two = (
        operators(f"fit llama-3.1-8b --gpu h100-sxm:{pp} --pp {pp} --isl 1000 --osl 300 --concurrency 8")
        for pp in (1, 2)
    )
    assert two["dense"]["flops"] == near(one["dense"]["flops"] / 2)


@pytest.mark.parametrize(("dp", "batch"), [(1, 9), (2, 4.5), (4, 2.25)])
def test_replicas_share_requests(dp: int, batch: int) -> None:
    words = f"fit llama-3.1-8b --gpu h100-sxm:{dp} --tp 1 --dp {dp} --isl 1000 --osl 300 --concurrency 9"
    assert answer(words)["speed"]["batch"] == batch


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_every_figure_of_speed_has_a_bound_on_either_side(engine: str) -> None:
    found = answer(f"fit llama-3.1-8b --gpu h100-sxm --engine {engine} --isl 500 --osl 100 --concurrency 1")
    speed = found["speed"]
    for name in (
        "ttft_ms",
        "tpot_ms",
        "output_tokens_per_s",
        "tokens_per_s_per_gpu",
        "itl_ms",
        "request_ms",
        "step_s",
        "mfu",
    ):
        assert 0 < speed[name]["low"] < speed[name]["value"] < speed[name]["high"], name
    cost = found["cost"]
    ends = [cost[f"usd_per_million_tokens{end}"] for end in ("_low", "", "_high")]
    assert ends == sorted(ends)
    assert ends[0] < ends[2]
    assert sum(line["seconds"] for line in speed["lines"]) * 1e3 == pytest.approx(speed["tpot_ms"]["value"], rel=1e-4)
    assert sum(line["seconds"] for line in speed["ttft_lines"]) * 1e3 == pytest.approx(
        speed["ttft_ms"]["value"], rel=1e-4
    )
    # two FLOPs a weight and token, the embedding looked up, the head (as large) multiplied for output tokens alone
    head = 128256 * 4096
    body = found["inputs"]["model"]["active_parameters"] - 2 * head
    useful = 2 * (body * (500 + 100) / 100 + head) * speed["tokens_per_s_per_gpu"]["value"]
    assert speed["mfu"]["value"] == pytest.approx(useful / 989.4e12, rel=0.01)


def test_replicas_that_make_what_arrives_have_a_bound_below_it() -> None:
    # At a rate that the plan keeps up with, throughput is what arrives and no more; the plan may still be slower.
    speed = answer("fit llama-3.1-8b --gpu l40s --isl 1000 --osl 300 --rate 1")["speed"]
    found = speed["output_tokens_per_s"]
    assert found["value"] == pytest.approx(300, rel=0.01)
    assert found["high"] == pytest.approx(300, rel=0.01)
    assert found["low"] <= found["value"]
    # Close to what the plan can make, its own bound lies below what arrives.
    busy = answer("fit llama-3.1-8b --gpu l40s --isl 1000 --osl 300 --rate 4.5")["speed"]["output_tokens_per_s"]
    assert busy["low"] < busy["value"] == busy["high"] == pytest.approx(1350)


@pytest.mark.parametrize(
    "words",
    [
        "fit llama-3.1-8b --gpu h100-sxm:4 --isl 1000 --osl 300 --concurrency 32",
        "fit llama-3.1-8b --gpu h100-sxm:4 --prefill 2xTP1 --decode 2xTP1 --isl 1000 --osl 300 --concurrency 32",
        "fit llama-3.1-8b --gpu h100-sxm:4 --isl 1000 --osl 300 --rate 4",
    ],
)
def test_a_request_is_its_first_token_and_the_rest(words: str) -> None:
    speed = answer(words)["speed"]
    rest = speed["request_ms"]["value"] - speed["ttft_ms"]["value"]
    assert rest == pytest.approx(299 * speed["tpot_ms"]["value"], rel=1e-3)
    for part in () if "--rate" in words else ("p50", "p99"):
        assert speed["request_ms"][part] - speed["ttft_ms"][part] == pytest.approx(rest, rel=1e-3)
    if "--rate" in words:  # tokens vary with the crowd
        assert speed["request_ms"]["p50"] < speed["request_ms"]["value"] < speed["request_ms"]["p99"]
    assert speed["ttft_ms"]["p50"] <= speed["ttft_ms"]["p99"]


@pytest.mark.parametrize(("tokens", "code"), [(1, 0), (64, 0), (65, 2), (0, 2)])
def test_drafts_of_one_to_64_tokens(tokens: int, code: int) -> None:
    document_of = f"fit llama-3.1-70b --gpu h100-sxm:4 --draft eagle3:{tokens}:0.7 --isl 1000 --osl 300 --concurrency 8"
    if code:
        with pytest.raises(ValueError, match="Expecting value"):
            document(document_of, code=code)
    else:
        assert document(document_of, code=None)["speed"]["tpot_ms"]["value"] > 0
