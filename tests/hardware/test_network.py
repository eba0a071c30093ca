"""The network between nodes as people state it, and what it changes."""

import json

import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.network import on_network, parse_network

A10 = "fit qwen2.5-1.5b --gpu a10:4 --nodes 2 --train 1024 --global-batch 4 --micro-batch 1 --zero 3 --engine deepspeed"


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("10GbE", 1.25e9), ("100GbE", 12.5e9), ("8x400Gb/s", 4e11), ("8 x 400 Gbps", 4e11), ("50GB/s", 5e10),
        ("2x100GbE", 25e9), ("NDR", 5e10), ("4xHDR", 1e11), ("3.2Tb/s", 4e11), ("800Mb/s", 1e8), ("12.5GBps", 12.5e9),
    ],
)  # fmt: skip
def test_rates_of_a_node(text: str, bytes_per_s: float) -> None:
    assert parse_network(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "text", ["10", "", "fast", "10 gbe", "0GbE", "1e9GB/s", "x400Gb/s", "400Gb", "nan GB/s", "9" * 400]
)
def test_what_is_no_rate_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(InputError, match="8x400Gb/s"):
        parse_network(text)


def test_a_node_shares_its_ports_and_a_narrow_core_divides_them() -> None:
    plain = Cluster.of(find("h100-sxm"), 64)
    assert on_network(plain, "8x400Gb/s", None).network.value == 50e9
    assert on_network(plain, "100GbE", None).network.value == pytest.approx(100e9 / 8 / 8)
    assert on_network(plain, "100GbE", 4).network.value == pytest.approx(100e9 / 8 / 8 / 4)
    assert on_network(plain, None, 2).network.value == plain.network.value / 2
    assert on_network(plain, None, None) == plain
    for wrong in (0.5, float("nan"), 1e6):
        with pytest.raises(InputError, match="oversubscription"):
            on_network(plain, None, wrong)


def asked(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main([*words.split(), "--json"]) in (0, 1)
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def step_s(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    found: dict[str, float] = asked(words, capsys)["speed"]["step_s"]  # type: ignore[index]
    return found


def test_ethernet_slows_two_nodes_of_a10_as_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSpeed issue 5770, Qwen2-1.5B under ZeRO-3: 2.46 s a step on two A10 of one node, 8.68 s on two such nodes."""
    usual = step_s(A10, capsys)
    assert usual["high"] < 8.68
    slow = step_s(f"{A10} --network 50Gb/s", capsys)
    assert slow["low"] < 8.68 < slow["high"]
    # the middle of the range is too low: gathers inside a node hide what the slow wire adds
    assert 1.05 < slow["value"] / usual["value"] < 3.5
    assert 1.5 * slow["value"] < step_s(f"{A10} --network 25GbE", capsys)["value"] < 2.2 * slow["value"]


def test_a_stated_network_keeps_the_card_s_calibration_and_leaves_one_node_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "fit llama-3.1-70b --gpu h100-sxm:16 --train 4096 --global-batch 64 --tp 8 --zero 1"
    usual = asked(words, capsys)
    same = asked(f"{words} --network 8x400Gb/s", capsys)
    assert same["speed"] == usual["speed"]
    assert not any("shared coefficients" in str(one) for one in same["warnings"])  # type: ignore[attr-defined]
    one_node = words.replace(":16", ":8")
    assert asked(f"{one_node} --network 10GbE", capsys)["speed"] == asked(one_node, capsys)["speed"]


@pytest.mark.parametrize(
    "words",
    [
        "fit llama-3.1-405b --gpu h100-sxm:16 --isl 1024 --osl 128 --concurrency 8",
        "check --gpu h100-sxm:16 -- vllm serve meta-llama/Llama-3.1-405B --tensor-parallel-size 16",
    ],
)
def test_serving_over_two_nodes_is_slower_on_ethernet(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, dash, rest = words.partition(" -- ")
    figures = []
    for rate in ("8x400Gb/s", "10GbE"):
        assert main(f"{before} --network {rate} --json{dash}{rest}".split()) in (0, 1)
        figures.append(json.loads(capsys.readouterr().out)["speed"]["ttft_ms"]["value"])
    assert figures[1] > 1.5 * figures[0]


def test_plan_and_compare_take_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    train = "plan llama-3.1-8b --gpu a100-sxm4-80gb:16 --train 4096 --global-batch 32"
    times = [
        asked(f"{train} {more}", capsys)["plans"][0]["speed"]["step_s"]["value"] for more in ("", "--network 1GbE")
    ]  # type: ignore[index]
    assert times[1] > times[0]
    compared = (
        "compare llama-3.1-8b --gpu h100-sxm:16 --gpu h200-sxm:16 --serve 1024/256 --concurrency 16 --network 10GbE"
    )
    assert main(compared.split()) in (0, 1)
