"""Collectives: volumes of textbook algorithms, what crosses a node, and monotony."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timing_cases import card, cluster

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.timing.coefficients import coefficients_for
from trilemma.timing.collectives import Wires, all_gather_s, all_reduce_s, point_to_point_s, wires

LOCAL = Wires(
    local_bytes_per_s=100e9, ring_bytes_per_s=100e9, local_latency_s=0.0, local_ranks=8, one_shot_latency_s=0.0,
    two_shot_latency_s=0.0, most_shot_bytes=2**23, peer_to_peer=False, network_bytes_per_s=10e9, network_latency_s=0.0,
    network_reduce_latency_s=0.0,
)  # fmt: skip


def test_ring_volume():
    # 2 (n - 1)/n of the buffer: 8 ranks, 1 GB at 100 GB/s
    assert all_reduce_s(1e9, 8, LOCAL) == pytest.approx(2 * 7 / 8 * 1e9 / 100e9)


def test_across_nodes_only_a_share_crosses():
    # two nodes of eight: each rank sends its eighth over its own port, there and back
    inside = 2 * 7 / 8 * 1e9 / 100e9
    assert all_reduce_s(1e9, 16, LOCAL) == pytest.approx(inside + 2 * (1 / 2) * (1e9 / 8) / 10e9)


def test_one_rank_needs_nothing():
    for collective in (all_reduce_s, all_gather_s):
        assert collective(1e9, 1, LOCAL) == 0.0


def test_gather_volume():
    assert all_gather_s(1e9, 4, LOCAL) == pytest.approx(3 * 1e9 / 100e9)


def test_small_messages_go_one_shot():
    over = wires(cluster(), coefficients_for(card()))
    assert all_reduce_s(8192, 8, over) < over.local_latency_s
    # what is beyond the largest message of such kernels goes as fast as the links carry it, by a ring or through the switch
    most = 8 * 2**20
    shot_s = over.two_shot_latency_s + 2 * 7 / 8 * most / over.local_bytes_per_s
    assert all_reduce_s(most, 8, over) == pytest.approx(shot_s)
    assert all_reduce_s(1e9, 8, over) == pytest.approx(shot_s + 2 * 7 / 8 * (1e9 - most) / over.ring_bytes_per_s)


@pytest.mark.parametrize(
    ("name", "vllm_us", "sglang_us"), [("h100-sxm", 577, 577), ("b200-sxm", 442, 396), ("a100-sxm4-80gb", 1161, 1164)]
)
def test_what_134_megabytes_over_eight_ranks_took(name: str, vllm_us: float, sglang_us: float) -> None:
    """ai-dynamo/aiconfigurator@095f58a5, custom_allreduce_perf of vLLM 0.24 (0.14 on A100) and SGLang 0.5, graph replays."""
    eight = Cluster.of(find(name), 8)
    took_us = 1e6 * float(all_reduce_s(2**27, 8, wires(eight, coefficients_for(eight.accelerator))))
    assert 0.9 * min(vllm_us, sglang_us) < took_us < 1.25 * max(vllm_us, sglang_us)


@pytest.mark.parametrize(
    ("gpus", "n_bytes", "vllm_us", "sglang_us"),
    [(4, 2**19, 11.4, 8.2), (4, 2**21, 18.6, 15.6), (8, 2**20, 15.0, 13.5), (8, 2**22, 30.8, 33.3)],
)
def test_what_custom_kernels_of_two_engines_took_on_h100(
    gpus: int, n_bytes: int, vllm_us: float, sglang_us: float
) -> None:
    """ai-dynamo/aiconfigurator@095f58a5, custom_allreduce_perf of vLLM 0.24 and SGLang 0.5.14, graph replays, BF16."""
    card_of = Cluster.of(find("h100-sxm"), gpus)
    took_us = 1e6 * float(all_reduce_s(n_bytes, gpus, wires(card_of, coefficients_for(card_of.accelerator))))
    assert 0.55 * min(vllm_us, sglang_us) < took_us < 1.25 * max(vllm_us, sglang_us)


@pytest.mark.parametrize("collective", [all_reduce_s, all_gather_s, point_to_point_s])
def test_more_bytes_take_longer_and_a_faster_wire_never_does(collective):
    ranks = np.array([2, 4, 8, 16, 64])
    slow, fast = (wires(cluster(card(link=link)), coefficients_for(card())) for link in (200e9, 900e9))
    assert np.all(collective(2e6, ranks, slow) > collective(1e6, ranks, slow))
    assert np.all(collective(1e6, ranks, fast) <= collective(1e6, ranks, slow))


def test_cards_without_a_link_talk_over_pcie_and_bridges_end_before_the_node():
    bare = card(link=None)
    over = wires(cluster(bare, gpus=16), coefficients_for(bare))
    assert not over.peer_to_peer
    assert over.local_ranks == 8
    bridge = card()
    bridge = replace(bridge, link=replace(bridge.link, domain=2))
    paired = wires(cluster(bridge), coefficients_for(bridge))
    assert paired.local_ranks == 2
    assert paired.network_bytes_per_s == pytest.approx(63e9 * coefficients_for(bridge).pcie_share)


def test_a_small_all_reduce_over_the_network_takes_what_was_measured() -> None:
    """NVIDIA/nccl issue 1453: two nodes of eight H100, 61.6 us at 128 bytes and 75.4 us at 4 KiB."""
    two_nodes = Cluster.of(find("h100-sxm"), 16)
    over = wires(two_nodes, coefficients_for(two_nodes.accelerator))
    for n_bytes in (128, 4096):
        assert 61.6e-6 <= float(all_reduce_s(n_bytes, 16, over)) <= 75.4e-6
