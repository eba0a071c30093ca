"""Bytes that groups move near and far, by where their ranks lie."""

import random
from dataclasses import replace

import numpy as np
import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.timing.training_collectives import Fabric, domains_reached, exchanged, gathered, members_near, passed_on


def test_a_group_inside_a_domain_moves_n_minus_one_nths() -> None:
    near, far = gathered(800.0, 8, 1, 8)
    assert (float(near), float(far)) == (700.0, 0.0)


def test_beyond_a_domain_its_members_share_the_ports() -> None:
    near, far = gathered(1600.0, 16, 1, 8)
    assert float(near) == 1500.0
    assert float(far) == 800.0 / 8
    _, alone = gathered(1600.0, 16, 8, 8)  # every eighth rank: one member a domain
    assert float(alone) == 1500.0


def test_strided_groups_have_fewer_members_near() -> None:
    assert members_near(np.array([16, 16, 16]), np.array([1, 4, 16]), 8).tolist() == [8, 2, 1]


def test_tokens_cross_once_into_each_domain() -> None:
    """All copies of a token that go to one domain cross together, so eight copies cost less than eight crossings."""
    _, plain = exchanged(800.0, 32, 1, 8)
    _, together = exchanged(800.0, 32, 1, 8, copies=8)
    assert float(plain) == pytest.approx(600.0)
    assert float(together) == pytest.approx(800 / 8 * 4 * (1 - 0.75**8) * 0.75)


def test_a_token_goes_once_to_each_rank_of_a_domain() -> None:
    """DeepEP's kernels of one node (csrc/kernels/intranode.cu, is_token_in_rank): of eight experts on eight ranks two often share
    one, 5.25 ranks are reached; of one copy each, and of all-to-all, every copy is sent."""
    together, every = (float(exchanged(800.0, 8, 1, 8, copies=copies)[0]) for copies in (8, 1))
    assert every == pytest.approx(700.0)
    assert together == pytest.approx(800 / 8 * 8 * (1 - (7 / 8) ** 8) * 7 / 8)
    across = float(exchanged(800.0, 64, 1, 8, copies=8)[0])
    assert 0.9 * every < across < every


def test_a_rack_is_one_domain_of_64_and_a_board_of_8() -> None:
    rack = Fabric.of(Cluster.of(find("gb200"), 256))
    board = Fabric.of(Cluster.of(find("b200-sxm"), 256))
    assert (rack.near_ranks, board.near_ranks) == (64, 8)
    assert rack.near_bytes_per_s == board.near_bytes_per_s == 900e9


def test_pcie_boxes_and_office_networks_have_slow_wires() -> None:
    box = Fabric.of(Cluster.of(find("rtx-4090"), 8, gpus_per_node=4))
    assert not box.linked
    assert box.near_ranks == 4
    assert box.near_bytes_per_s < 40e9
    assert box.far_bytes_per_s < 2e9
    narrow = Fabric.of(replace(Cluster.of(find("h100-sxm"), 64), oversubscription=4))
    assert narrow.far_bytes_per_s == Fabric.of(Cluster.of(find("h100-sxm"), 64)).far_bytes_per_s / 4


def test_stages_far_apart_hand_on_over_the_network() -> None:
    near, far = passed_on(100.0, np.array([4, 8, 64]), 512, 8)
    assert near.tolist() == [50.0, 0.0, 0.0]
    assert far.tolist() == [50.0, 100.0, 100.0]
    assert passed_on(100.0, 4, 8, 8)[1] == 0.0


@pytest.mark.parametrize("domains", [2, 4, 8, 16])
def test_a_router_limited_to_groups_reaches_fewer_domains(domains: int) -> None:
    """Against drawing: four of eight groups at random, then eight different of their 128 experts (DeepSeek-V3)."""
    draw = random.Random(domains)
    total = 0
    for _ in range(4000):
        groups = draw.sample(range(8), 4)
        experts = draw.sample([group * 32 + one for group in groups for one in range(32)], 8)
        total += len({expert * domains // 256 for expert in experts})
    assert domains_reached(domains, 8, (8, 4)) == pytest.approx(total / 4000, rel=0.03)
    assert domains_reached(domains, 8, (8, 4)) < domains_reached(domains, 8)


def test_without_groups_routing_is_even() -> None:
    assert domains_reached(8, 8) == pytest.approx(8 * (1 - (7 / 8) ** 8))
    assert domains_reached(1, 8, (8, 4)) == pytest.approx(1.0)
    assert domains_reached(8, 8, (8, 8)) == pytest.approx(domains_reached(8, 8))
    between = [domains_reached(domains, 8, (8, 4)) for domains in range(1, 33)]
    assert between == sorted(between)


def test_the_exchange_of_a_limited_router_crosses_less() -> None:
    _, even = exchanged(800.0, np.array([8, 64]), 1, 8, copies=8)
    _, limited = exchanged(800.0, np.array([8, 64]), 1, 8, copies=8, limit=(8, 4))
    assert even[0] == limited[0] == 0.0
    assert limited[1] / even[1] == pytest.approx(3.6 / 5.25, rel=0.01)
