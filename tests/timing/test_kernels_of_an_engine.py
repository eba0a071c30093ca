"""What one engine's kernels do otherwise: few tokens of a mixture, states, the file that it is published in, its age."""

from __future__ import annotations

import numpy as np
import pytest

import trilemma as tl
from trilemma.engines.loading import as_published_for
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.parameters import weight_bytes
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work
from trilemma.timing.eras import era_of

BF16 = catalogue.get("bf16")


def test_rows_worked_one_by_one_pad_nothing_and_share_no_reading() -> None:
    experts = model_work(load_model("gpt-oss-20b"), find("m1-ultra")).experts[0]
    one = experts.work(1.0, 1, tile_rows=16, row_by_row=True)
    tiled = experts.work(1.0, 1, tile_rows=16)
    assert float(tiled.flops) == pytest.approx(16 * float(one.flops))  # four experts of one row each, padded to 16
    assert float(one.bytes) == pytest.approx(float(tiled.bytes))
    five = experts.work(5.0, 1, tile_rows=16, row_by_row=True)
    assert float(five.flops) == pytest.approx(5 * float(one.flops))
    assert float(five.bytes) == pytest.approx(5 * float(one.bytes))


@pytest.mark.parametrize(("gpu", "alone"), [("m3-ultra", 31), ("rtx-4090", 1), ("radeon-rx-7900-xtx", 1)])
def test_backends_change_kernels_at_their_own_number_of_tokens(gpu: str, alone: int) -> None:
    coefficients = Machine.of(Cluster.of(find(gpu), 1), "llama.cpp").coefficients
    assert coefficients.row_by_row_tokens == alone
    assert Machine.of(Cluster.of(find(gpu), 1), "vllm").coefficients.row_by_row_tokens == 0


@pytest.mark.parametrize(
    ("model", "gpu", "precision", "measured", "within"),
    [
        # geerlingguy/ai-benchmarks README; llama.cpp discussion 15396; batched-bench on DGX Spark (build 6918)
        ("gpt-oss-20b", "rtx-4090", None, 279.65, 0.3),  # mixtures were fitted on GB10 alone, whose launches are slow
        ("gpt-oss-20b", "m1-ultra", None, 100.0, 0.2), ("gpt-oss-20b", "gb10", None, 81.11, 0.2),
        # llama-bench of build 6810 in a public repository; CambrianTech/continuum PR 1627
        ("qwen3-30b-a3b", "m3-ultra", "Q4_K_M", 94.9, 0.2), ("qwen3-8b", "rtx-5090", "Q4_K_M", 221.7, 0.25),
    ],
)  # fmt: skip
def test_public_figures_of_llama_cpp_lie_near_and_inside(
    model: str, gpu: str, precision: str | None, measured: float, within: float
) -> None:
    speed = tl.fit(model, gpu, engine="llama.cpp", precision=precision, isl=128, osl=256, concurrency=1).to_dict()[
        "speed"
    ]
    rate = speed["output_tokens_per_s"]
    assert rate["value"] == pytest.approx(measured, rel=within)
    assert rate["low"] <= measured <= rate["high"]


def test_gpt_oss_is_another_file_under_llama_cpp() -> None:
    # 13.8 GB of safetensors (attention, embedding and head in 16 bits); 12.1 GB as GGUF, Q8_0 beside the experts
    model = load_model("gpt-oss-20b")
    assert weight_bytes(as_published_for(model, "vllm")) == pytest.approx(13.76e9, rel=0.01)
    assert weight_bytes(as_published_for(model, "llama.cpp")) == pytest.approx(12.1e9, rel=0.01)
    plain = load_model("llama-3.1-8b")
    assert as_published_for(plain, "llama.cpp") is plain


def test_states_stream_as_weights_do_whatever_attention_reaches() -> None:
    model, cluster = load_model("nemotron-3-nano-30b-a3b"), Cluster.of(find("h100-sxm"), 1)
    work = model_work(model, cluster.accelerator)
    machine = Machine.serving(cluster, work=work, engine="vllm")
    step = decode_step(work, machine, Layout(), batch=512, context=64, kv_format=BF16)
    states = sum(
        count * mixer.decode_bytes(np.float64(64), tp=1, kv_format=BF16, dcp=1) for mixer, count in work.mixers
    )
    share = min(float(machine.coefficients.stream_share(16)), 1.0)
    assert float(step.lines["attention"]) == pytest.approx(512 * float(states) / (3.35e12 * share), rel=0.1)


def test_older_releases_are_slower_and_less_sure() -> None:
    found = {
        version: tl.fit("llama-3.1-8b", "h100-sxm", engine=f"vllm{version}", isl=512, osl=512, concurrency=8).to_dict()
        for version in ("", "@0.19.0", "@0.11.1", "@0.7.3", "@0.5.3")
    }
    tpot = {version: one["speed"]["tpot_ms"] for version, one in found.items()}
    assert tpot[""] == tpot["@0.19.0"]
    values = [tpot[version]["value"] for version in ("@0.19.0", "@0.11.1", "@0.7.3", "@0.5.3")]
    assert values == sorted(values)
    # blog of 0.6.0: between 1.8 times (70B) and 5 times (8B) as long before it
    assert 1.5 <= values[3] / values[0] <= 5
    widths = [tpot[version]["high"] / tpot[version]["low"] for version in ("@0.19.0", "@0.7.3", "@0.5.3")]
    assert widths == sorted(widths)
    assert any(one["code"] == "engine-era" for one in found["@0.7.3"]["warnings"])
    assert not any(one["code"] == "engine-era" for one in found[""]["warnings"])


def test_launches_of_llama_cpp_cost_less_since_cuda_graphs_and_again_since_kernels_were_joined() -> None:
    card = find("rtx-3090")
    old, graphs, joined = (era_of("llama.cpp", version, card) for version in ("b2500", "b6000", "b7500"))
    assert old.factors == {}
    assert joined.factors["kernel"] < graphs.factors["kernel"] < 1
    assert joined == era_of("llama.cpp", None, card)
    assert era_of("llama.cpp", "b6000", find("rtx-2080")).factors == {}  # no graphs on Turing before 2026
    assert era_of("llama.cpp", "b10000", find("rtx-2080")).factors["kernel"] < 1
    metal = era_of("llama.cpp", "b6000", find("m3-ultra")).factors
    assert metal["kernel"] == 1.0 < metal["stream"]  # no CUDA graphs on Metal, faster products
    assert era_of("vllm", "nightly", card).factors == {}


@pytest.mark.parametrize(
    ("model", "card", "precision", "per_s"),
    [
        ("gpt-oss-20b", "rtx-4090", None, 273),  # ggml-org/llama.cpp discussion 15396: 266 to 280
        ("gpt-oss-20b", "rtx-pro-6000-blackwell", None, 391),  # pull 16991, December 2025
        ("gpt-oss-20b", "gb10", None, 79.7),  # jetsonhacks.com, October 2025
        ("qwen3-8b", "rtx-5090", "Q4_K_M", 222),  # CambrianTech/continuum pull 1627
        ("llama-3.2-1b", "rtx-2080", "Q4_K_M", 304.3),  # AlexsJones/llmfit pull 778, July 2026
        ("llama-3.2-3b", "rtx-2080", "Q4_K_M", 140.3),
        ("llama-3.1-8b", "rtx-2080", "Q4_K_M", 71.9),  # pull 773
        ("llama-3.1-8b", "rx-7900-xtx", "Q4_K_M", 105.8),  # ggml-org/llama.cpp pull 26284
        ("llama-3.1-8b", "apple-m1-max", "Q4_K_M", 46.2),  # brand-o/normiebench issue 40
        ("llama-3.1-8b", "apple-m4", "Q4_K_M", 20.87),  # issue 3
        ("tinyllama-1.1b", "apple-m1-ultra", "Q4_K_M", 242.6),  # geerlingguy/ai-benchmarks issue 48
    ],
)
def test_one_reader_of_llama_cpp_today(model: str, card: str, precision: str | None, per_s: float) -> None:
    """Tokens a second that people measured, within a quarter; all were 7 to 63 % slower before."""
    said = tl.fit(model, card, engine="llama.cpp", precision=precision, isl=128, osl=128, concurrency=1)
    assert 1 / said.speed.tpot_s.interval.value == pytest.approx(per_s, rel=0.30)
    assert said.speed.tpot_s.interval.low <= 1 / per_s <= said.speed.tpot_s.interval.high
