"""Wiring: which wire a group talks over, and what it carries."""

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.hardware import Cluster, find
from trilemma.hardware.fabrics import default_node_network, latency_s, pcie_bytes_per_s


@pytest.mark.parametrize(
    ("name", "group", "kind", "bytes_per_s"),
    [
        ("h100-sxm", 1, "none", np.inf),
        ("h100-sxm", 8, "link", 450e9),
        ("h100-sxm", 16, "network", 50e9),
        ("b300-sxm", 16, "network", 100e9),
        ("gb200", 4, "link", 900e9),
        ("gb200", 64, "link", 900e9),
        ("gb200", 72, "link", 900e9),
        ("gb200", 144, "network", 50e9),
        ("mi355x", 8, "link", 535.5e9),
        ("a100-pcie-80gb", 2, "link", 300e9),
        ("a100-pcie-80gb", 4, "pcie", 16 * 16e9 * 128 / 130 / 8),
        ("l40s", 2, "pcie", 16 * 16e9 * 128 / 130 / 8),
        ("rtx-4090", 16, "network", 1.25e9),
        ("gb10", 2, "network", 25e9),
    ],
)
def test_the_wire_of_a_group(name: str, group: int, kind: str, bytes_per_s: float):
    cluster = Cluster.of(find(name), 256)
    path = cluster.path(group)
    assert path.kind == kind
    assert path.bytes_per_s.value == pytest.approx(bytes_per_s)
    assert path.bytes_per_s.source
    assert cluster.link_bytes_per_s(group) == path.bytes_per_s.value


def test_arrays_of_groups_give_arrays_of_rates():
    cluster = Cluster.of(find("h100-sxm"), 64)
    sizes = np.array([[1, 2], [8, 9]])
    rates = cluster.link_bytes_per_s(sizes)
    assert rates.shape == sizes.shape
    assert rates.tolist() == [[cluster.link_bytes_per_s(int(size)) for size in row] for row in sizes]
    assert isinstance(cluster.link_bytes_per_s(8), float)


def test_a_board_split_into_smaller_nodes_splits_its_domain():
    cluster = Cluster.of(find("h100-sxm"), 8, gpus_per_node=4)
    assert cluster.path(8).kind == "network"
    assert cluster.path(4).kind == "link"


def test_a_rack_has_spares():
    cluster = Cluster.of(find("gb300"), 72)
    assert (cluster.domain, cluster.usual_domain, cluster.gpus_per_node, cluster.nodes) == (72, 64, 4, 18)
    assert Cluster.of(find("h100-sxm"), 8).usual_domain == 8


def test_latency_grows_outwards():
    assert 0 < latency_s("link").value < latency_s("pcie").value < latency_s("network").value
    assert Cluster.of(find("h100-sxm"), 16).path(16).latency_s.value == latency_s("network").value


def test_a_stated_network_counts_and_an_assumed_one_is_listed():
    assert Cluster.of(find("h100-sxm"), 16, network_bytes_per_s=8 * 25e9).link_bytes_per_s(16) == 25e9
    assert Cluster.of(find("h100-sxm"), 16).warnings == ()
    (warning,) = Cluster.of(find("l40s"), 16).warnings
    assert warning.code == "network-assumed"
    assert Cluster.of(find("l40s"), 8).warnings == ()


@pytest.mark.parametrize(("generation", "gb_per_s"), [(3, 15.75), (4, 31.51), (5, 63.02), (6, 121.0)])
def test_pcie_rates(generation: int, gb_per_s: float):
    assert pcie_bytes_per_s(generation).value / 1e9 == pytest.approx(gb_per_s, abs=0.01)


def test_unknown_pcie_generations_are_refused():
    with pytest.raises(InputError):
        pcie_bytes_per_s(9)


def test_networks_by_generation():
    assert default_node_network("Hopper sm_90").value == 50e9
    assert default_node_network("Ampere sm_80").value == 25e9
    assert default_node_network("Unheard of").value == 12.5e9


@pytest.mark.parametrize(
    "arguments",
    [{"gpus": 0}, {"gpus": -1}, {"gpus": 2**21}, {"gpus": 8, "nodes": 3}, {"gpus": 8, "nodes": 0},
     {"gpus": 8, "nodes": 2, "gpus_per_node": 8}, {"gpus": 8, "network_bytes_per_s": float("nan")}],
)  # fmt: skip
def test_impossible_shapes_are_refused(arguments: dict):
    with pytest.raises(InputError):
        Cluster.of(find("h100-sxm"), **arguments)
