"""Overheads: graphs, activation peaks, buffers, and the data that they come from."""

from __future__ import annotations

import numpy as np
import pytest

import trilemma as tl
from trilemma.engines.rank_memory import Widths, buffer_bytes, fabric_of, graph_bytes, rungs
from trilemma.engines.vllm.facts import for_version
from trilemma.engines.vllm.overheads import activation_peak, captured
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.quantities import GIB


@pytest.mark.parametrize(("largest", "count"), [(0, 0), (1, 1), (2, 2), (4, 3), (8, 4), (16, 5), (256, 35), (512, 51)])
def test_captured_batches(largest: int, count: int) -> None:
    """1, 2, 4, then steps of 8, from 256 on of 16: 51 batches up to 512, as start-up logs count them."""
    assert rungs(for_version("0.19.0").coefficients["graphs"]["ladder"], largest) == count


def _graphs(version: str, *, tp: int = 1, seqs: int = 1024, layers: int = 32, eager: bool = False) -> float:
    facts = for_version(version)
    graphs, largest = captured(facts, max_seqs=seqs, tokens=8192, draft_tokens=0, sizes=None, eager=eager)
    widths = Widths.of(load_model("llama-3.1-8b"))
    return float(graph_bytes(widths, facts.coefficients, layers=layers, graphs=graphs, largest=largest, tp=tp))


def test_graphs_of_one_campaign() -> None:
    """Llama-3.1-8B with 0.19: .91 GiB alone, .76 and .67 at TP 2 and 4, .65 and .51 at PP 2 and 4."""
    measured = {(1, 32): 0.91, (2, 32): 0.76, (4, 32): 0.67, (1, 16): 0.65, (1, 8): 0.51}
    for (tp, layers), gib in measured.items():
        assert _graphs("0.19.0", tp=tp, layers=layers) / GIB == pytest.approx(gib, abs=0.04)
    assert _graphs("0.19.0", eager=True) == 0
    assert _graphs("0.19.0", seqs=1) < 0.2 * _graphs("0.19.0")


@pytest.mark.parametrize(
    ("gpu", "kv", "gib"),
    [
        ("rtx-5090", "fp8", 0.45),
        ("rtx-5090", "fp8_per_token_head", 0.06),
        ("rtx-5090", "bfloat16", 0.06),
        ("h200-sxm", "fp8", 0.06),
        ("b200-sxm", "bfloat16", 0.45),
    ],
)
def test_passes_that_check_drafts_keep_the_workspace_of_flashinfer(gpu: str, kv: str, gib: float) -> None:
    """Qwen3.8-27B with three drafts on an RTX 5090: 0.45 GiB in fp8, 0.06 through Triton (malaiwah/qwen38-27b-exl3);
    FlashAttention reads 8-bit caches on Hopper, and FlashInfer comes first on B200 (vllm/platforms/cuda.py)."""
    words = f"docker run vllm/vllm-openai:v0.26.0 --model Qwen/Qwen3.6-27B --max-num-seqs 1 --kv-cache-dtype {kv}"
    drafts = """--max-model-len 8192 --speculative-config '{"method":"mtp","num_speculative_tokens":3}'"""
    found = tl.check(f"{words} {drafts}", gpu=gpu).to_dict()
    graphs = next(line["bytes"] for line in found["memory"]["items"] if line["name"] == "cuda_graphs")
    assert graphs / GIB == pytest.approx(gib, abs=0.07)


def test_the_first_engine_captured_once_for_every_stage() -> None:
    """vllm/worker/model_runner.py of V0, capture_model: every size again for each of its virtual engines."""
    two, one = (
        captured(for_version(v), max_seqs=256, tokens=8192, draft_tokens=0, sizes=None, eager=False, pp=2)
        for v in ("0.7.0", "0.8.5")
    )
    alone = captured(for_version("0.7.0"), max_seqs=256, tokens=8192, draft_tokens=0, sizes=None, eager=False)
    assert two[0] == 2 * alone[0]
    assert float(one[0]) == float(
        captured(for_version("0.8.5"), max_seqs=256, tokens=8192, draft_tokens=0, sizes=None, eager=False)[0]
    )


def _peak(
    name: str, *, version: str = "0.19.0", tp: int = 1, ep: int = 1, seqs: int = 1, tokens: int = 8192, context: int = 8192,
    gpu: str = "h100-sxm", text_only: bool = False, last: bool = True,
) -> float:  # fmt: skip
    model = load_model(name)
    peak = activation_peak(
        model, widths=Widths.of(model), facts=for_version(version), tp=np.array(tp), ep=np.array(ep), last=last,
        max_seqs=seqs, tokens=tokens, dtype_bytes=2, context=context, text_only=text_only,
        compute_capability=find(gpu).compute_capability,
    )  # fmt: skip
    return float(peak.logits + peak.activations)


def test_the_sampler_goes_by_sequences_and_vocabulary_and_not_by_ranks() -> None:
    few, many = (_peak("gemma-2-9b", seqs=seqs) for seqs in (512, 1024))
    assert many - few == pytest.approx(512 * 256000 * 14.2, rel=0.02)
    assert _peak("gemma-2-9b", seqs=1024, tp=8) == pytest.approx(many)
    assert _peak("gemma-2-9b", seqs=1024, last=False) < 0.4 * many


def test_the_forward_pass_goes_by_tokens_and_is_divided_by_ranks() -> None:
    base = _peak("llama-3.1-70b", tokens=8192)
    assert _peak("llama-3.1-70b", tokens=16384) == pytest.approx(2 * base, rel=0.1)
    assert _peak("llama-3.1-70b", tokens=8192, tp=8) < 0.4 * base


def test_mixtures_keep_a_workspace() -> None:
    """Mixtral stands .4 to .6 GiB above dense models of its sizes in llm-d-planner pull request 205; gpt-oss does not."""
    assert _peak("mixtral-8x7b", seqs=1024, tp=2) - 1024 * 32000 * 14.2 > 0.6 * GIB
    assert _peak("gpt-oss-20b", seqs=1024) / GIB == pytest.approx(2.87, abs=0.1)


def test_latent_attention_unpacks_cached_tokens() -> None:
    """65,536 tokens of 128 heads of 128 + 128 in 16 bits are 4 GiB, an eighth of it at TP 8."""
    whole, eighth = (_peak("deepseek-v3", tp=tp, tokens=512, context=32768) for tp in (1, 8))
    assert whole - eighth == pytest.approx(65536 * 128 * 256 * 2 * 7 / 8, rel=0.05)
    assert _peak("deepseek-v3", version="0.7.3", tokens=512, context=32768) < 0.2 * whole


def test_sparse_attention_without_its_kernels_holds_all_logits() -> None:
    """GLM-5.1 at 202,752 tokens on eight RTX PRO 6000 leaves 7.0 GiB to neither weights nor cache."""
    consumer, server = (
        _peak("glm-5.1-fp8", tp=8, seqs=64, context=202752, gpu=gpu) / GIB for gpu in ("rtx-pro-6000", "b200")
    )
    assert consumer == pytest.approx(7.0, rel=0.25)
    assert server < 3


def test_images_of_any_size_cost_what_the_largest_costs() -> None:
    dynamic, fixed = (
        _peak(name, tokens=2048) - _peak(name, tokens=2048, text_only=True) for name in ("qwen3.5-27b", "gemma-3-4b")
    )
    assert 1.0 * GIB < dynamic < 2.5 * GIB
    assert 0 < fixed < 0.2 * GIB


@pytest.mark.parametrize(
    ("gpu", "fabric"),
    [("h100-sxm", "multicast"), ("b200", "multicast"), ("a100-sxm-80gb", "linked"), ("rtx-3090", "bridged"),
     ("l40s", "bridged"), ("mi300x", "linked")],
)  # fmt: skip
def test_fabrics(gpu: str, fabric: str) -> None:
    assert fabric_of(find(gpu), for_version("0.19.0").coefficients) == fabric


def test_communication_needs_a_second_rank() -> None:
    memory = for_version("0.19.0").coefficients
    _, added = buffer_bytes(memory, ranks=np.array([1, 2, 4]), fabric="multicast")
    assert (added / GIB).tolist() == [0, 1.85, 1.85]
    _, bridged = buffer_bytes(memory, ranks=np.array([2]), fabric="bridged")
    assert bridged[0] < 0.5 * GIB
