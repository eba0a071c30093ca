"""Hosts: what their memory moves, as named, as stated, as assumed."""

from __future__ import annotations

import pytest

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.hosts import host_of, parse_host


@pytest.mark.parametrize(
    ("text", "gb_per_s"),
    [
        # channels x 8 bytes x MT/s
        ("DDR5-5600x2", 89.6), ("ddr4-3200x2", 51.2), ("DDR4-3200x8", 204.8), ("desktop-ddr5", 89.6),
        # AMD EPYC 9004: "up to 460.8 GB/s"; EPYC 7003: 204.8; Xeon of the fourth generation: 307.2
        ("epyc-9004", 460.8), ("epyc-7003", 204.8), ("xeon-4th", 307.2), ("89.6", 89.6), ("77 GB/s", 77.0),
    ],
)  # fmt: skip
def test_bandwidth_of_a_host_as_named(text: str, gb_per_s: float) -> None:
    host = parse_host(text)
    assert host.bytes_per_s.value == pytest.approx(gb_per_s * 1e9)
    assert not host.assumed
    assert host.interval.low == host.interval.high


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "0.0001", "1e30", "99999", "ddr5-5600", "ddr9-5600x2", "ddr5-99999x99", "hal"]
)
def test_hosts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_host(text)


@pytest.mark.parametrize(
    ("accelerator", "name"),
    [
        ("rtx-4090", "DDR5-5600x2"),
        ("a100-pcie-80gb", "DDR4-3200x8"),
        ("h100-sxm", "DDR5-4800x8"),
        ("l40s", "DDR4-3200x8"),
    ],
)
def test_what_is_assumed_fits_the_card_and_says_how_sure_it_is(accelerator: str, name: str) -> None:
    host = host_of(find(accelerator))
    assert host.assumed
    assert host.name == name
    assert host.interval.low <= host.interval.value / 2
    assert host.interval.high > host.interval.value


def test_a_card_that_shares_memory_with_its_host_is_its_own() -> None:
    host = host_of(find("m3-ultra"))
    assert not host.assumed
    assert host.bytes_per_s.value == 819e9


@pytest.mark.parametrize("name", ["gh200-96gb", "gh200-144gb", "gb200", "gb300"])
def test_a_superchip_reaches_its_own_processor_over_its_own_link(name: str) -> None:
    accelerator = find(name)
    host = host_of(accelerator)
    # NVLink-C2C moves 900 GB/s in both directions together; LPDDR5X of one Grace: 384 to 512 GB/s by size
    assert accelerator.host_bytes_per_s is not None
    assert accelerator.host_bytes_per_s.value == 450e9
    assert host.assumed
    assert (host.name, host.interval.low, host.bytes_per_s.value, host.interval.high) == ("grace", 384e9, 500e9, 512e9)


def test_other_cards_reach_their_host_over_pcie() -> None:
    for name in ("h100-sxm", "rtx-4090", "b200"):
        accelerator = find(name)
        assert accelerator.host_link is None
        assert accelerator.host_bytes_per_s == accelerator.pcie_bytes_per_s
