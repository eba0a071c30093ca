"""What the tools of NVIDIA, AMD and Apple print of a machine: how many GPUs, which, how large, in which state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from machines import MACHINES, Machine, table
from trilemma.ask.diagnosed import diagnose


def facts(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "output.txt"
    path.write_text(text)
    found = diagnose(path)
    assert not found.files[0].unreadable
    return dict(found.files[0].facts)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_count_of_every_machine(machine: Machine, tmp_path: Path) -> None:
    found = facts(tmp_path, machine.text)
    assert found["gpus"] == machine.count
    assert len(found["names"]) == 1
    if machine.gib is not None and "memory_total_mib" in found:
        assert found["memory_total_mib"][0] / 1024 == pytest.approx(machine.gib, abs=0.06)


def test_two_partitions_are_one_card(tmp_path: Path) -> None:
    machine = next(one for one in MACHINES if "two parts" in one.name)
    assert facts(tmp_path, machine.text)["partitions"] == 8


def test_the_text_of_q_tells_what_the_xml_tells(tmp_path: Path) -> None:
    text = (
        "==============NVSMI LOG==============\nDriver Version                            : 580.105.06\n"
        "GPU 00000000:42:00.0\n    Product Name                          : NVIDIA H200 NVL\n"
        "    Clocks Event Reasons\n        HW Slowdown                       : Not Active\n"
        "            HW Thermal Slowdown           : Active\n        SW Power Cap                      : Active\n"
        "    ECC Errors\n        Volatile\n            SRAM Correctable              : 3\n"
        "            DRAM Uncorrectable            : 2\n"
        "    Remapped Rows\n        Pending                           : Yes\n"
        "        Remapping Failure Occurred        : No\n"
    )
    path = tmp_path / "q.txt"
    path.write_text(text)
    found = diagnose(path)
    told = {one.id: one for one in found.findings}
    assert set(told) == {"gpu.row-remap-pending", "gpu.uncorrected-errors", "gpu.clocks-held-down"}
    assert "2 uncorrected" in told["gpu.uncorrected-errors"].claim
    assert "hw_thermal_slowdown" in told["gpu.clocks-held-down"].claim


def test_a_topology_says_how_gpus_reach_each_other(tmp_path: Path) -> None:
    text = (  # github.com/NVIDIA/nccl issue 933, its first rows
        "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV8     PIX     0-47,96-143     0\nGPU1    NV8      X      SYS     48-95,144-191   1\n"
        "NIC0    PIX     SYS      X\n\nLegend:\n  X    = Self\n"
    )
    found = facts(tmp_path, text)
    assert found["between_gpus"] == ["NV8"]
    assert found["network_cards"] == 1
    assert found["numa_nodes"] == [0, 1]


def test_a_table_keeps_errors_and_watts(tmp_path: Path) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(table("NVIDIA H100 80GB HBM3", 81559, 700, 2, driver="550.54.15", cuda="12.4", ecc="3"))
    found = diagnose(path)
    assert [one.id for one in found.findings] == ["gpu.uncorrected-errors"] * 2
    assert found.files[0].parts[0].events[0].values["power_limit_w"] == 700


def test_versions_of_pip_and_of_collect_env(tmp_path: Path) -> None:
    text = (
        "torch==2.4.0+cu121\n[pip3] transformers==4.45.2\nflash-attn                2.6.3\nvLLM Version: 0.6.3.post1\n"
    )
    assert facts(tmp_path, text)["versions"] == {
        "torch": "2.4.0+cu121", "transformers": "4.45.2", "flash-attn": "2.6.3", "vllm": "0.6.3.post1",
    }  # fmt: skip


def test_limits_of_a_container(tmp_path: Path) -> None:
    text = (
        "MemTotal:       24591234 kB\nmax locked memory           (kbytes, -l) 64\n"
        "shm              65536    0     65536   0% /dev/shm\nopen files                          (-n) 1024\n"
    )
    found = facts(tmp_path, text)
    assert found["shm_bytes"] == 64 * 2**20
    assert found["locked_bytes"] == 64 * 2**10
    assert found["memory_total_bytes"] == 24591234 * 1024
