"""Tokens of shared experts: gathered by all ranks, or sent to the ranks of their experts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from timing_cases import FP8

from trilemma import engines
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work
from trilemma.timing.forward_pass import prefill_pass


def exchanged_s(routed: bool, *, replicas: int, batch: int = 64) -> float:
    cluster = Cluster.of(find("gb200"), 72)
    work = model_work(load_model("deepseek-v3"), cluster.accelerator)
    machine = replace(Machine.of(cluster), routes_tokens=routed)
    layout = Layout(tp=1, dp=replicas, ep=replicas)
    return float(decode_step(work, machine, layout, batch=batch, context=1000, kv_format=FP8).lines["expert_exchange"])


def test_what_is_sent_by_hand():
    # 58 layers; 64 tokens of 7168 x 2 B to 8 experts, 31 of 32 elsewhere, there in 8 bits and back in 16, in one NVLink domain
    wires = Machine.of(Cluster.of(find("gb200"), 72)).wires
    copies_bytes = 64 * 7168 * 2 * 8 * 31 / 32
    by_hand = 58 * (2 * wires.local_latency_s + 1.5 * copies_bytes / wires.local_bytes_per_s)
    assert exchanged_s(True, replicas=32) == pytest.approx(by_hand)


def test_what_is_sent_hardly_grows_with_the_ranks_and_what_is_gathered_does():
    assert exchanged_s(True, replicas=64) < 1.05 * exchanged_s(True, replicas=16)
    assert exchanged_s(False, replicas=64) > 2.5 * exchanged_s(False, replicas=16)
    assert exchanged_s(True, replicas=32) < exchanged_s(False, replicas=32) / 2
    assert exchanged_s(True, replicas=1) == 0


def test_engines_gather_unless_they_are_told_otherwise():
    # server_args.py: --moe-a2a-backend none by default; vllm/config/parallel.py: allgather_reducescatter
    sglang, vllm = engines.traits_of("sglang"), engines.traits_of("vllm")
    assert not sglang.routes_tokens({})
    assert not sglang.routes_tokens({"moe-a2a-backend": "none"})
    assert sglang.routes_tokens({"moe-a2a-backend": "deepep"})
    assert not vllm.routes_tokens({"all2all-backend": "allgather_reducescatter"})
    assert vllm.routes_tokens({"all2all-backend": "deepep_low_latency"})


def prompt_tokens_per_s_per_gpu(gpu: str, ranks: int, *, routed: bool) -> float:
    cluster = Cluster.of(find(gpu), ranks)
    work = model_work(load_model("deepseek-r1"), cluster.accelerator)
    machine = Machine.serving(cluster, work=work, engine="sglang", routes_tokens=routed)
    layout = Layout(tp=1, dp=ranks, ep=ranks)
    step = prefill_pass(work, machine, layout, tokens=2000, cached=0, prompts=8, kv_format=FP8)
    return 8 * 2000 / float(step.total_s)


def test_grouped_kernels_prefill_as_published() -> None:
    """SGLang with DeepEP and DeepGEMM, DeepSeek-R1 in FP8, prompts of 2,000 tokens: 18,471 a second and GPU of GB200 at its best,
    on H100 26,156 / 3.8 (lmsys.org/blog/2025-09-25-gb200-part-2). Fused kernels of experts reach a third of that."""
    assert 9_000 < prompt_tokens_per_s_per_gpu("gb200", 8, routed=True) < 18_471
    assert 3_400 < prompt_tokens_per_s_per_gpu("h100-sxm", 32, routed=True) < 8_000
    assert prompt_tokens_per_s_per_gpu("gb200", 8, routed=False) < 6_000
