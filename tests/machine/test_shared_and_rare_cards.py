"""Cards whose name says too little, and cards that the usual engines do not run on."""

from __future__ import annotations

from pathlib import Path

import pytest

import trilemma as tl
from trilemma.hardware.catalogue import find

# nvidia-smi of a Jetson (L4T 36.4): the GPU has the machine's memory and tells none of its own.
JETSON = """\
| NVIDIA-SMI 540.4.0                Driver Version: 540.4.0      CUDA Version: 12.6     |
|-----------------------------------------+----------------------+----------------------+
|   0  Orin (nvgpu)                  N/A  | N/A              N/A |                  N/A |
| N/A   N/A  N/A               N/A /  N/A | Not Supported        |     N/A          N/A |
|                                         |                      |                  N/A |
"""
NPU = """\
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4               | OK            | 86.5        41                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          2862 / 32768         |
"""


@pytest.mark.parametrize("name", ["Orin (nvgpu)", "Jetson Orin", "orin"])
def test_a_name_of_several_boards_asks_which(name: str) -> None:
    with pytest.raises(tl.InputError, match="names several accelerators; give one of nvidia-jetson-agx-orin-32gb"):
        find(name)


@pytest.mark.parametrize(
    ("kilobytes", "board"),
    [
        (64_345_152, "nvidia-jetson-agx-orin-64gb"),
        (31_262_000, "nvidia-jetson-agx-orin-32gb"),
        (15_960_000, "nvidia-jetson-orin-nx-16gb"),
        (7_800_000, "nvidia-jetson-orin-nano-8gb"),
    ],
)
def test_the_machines_memory_tells_the_board(tmp_path: Path, kilobytes: int, board: str) -> None:
    (tmp_path / "smi.txt").write_text(JETSON)
    (card,) = tl.here(tmp_path / "smi.txt").cards
    assert card.id is None
    assert "names several accelerators" in card.note
    (tmp_path / "mem.txt").write_text(
        f"MemTotal:       {kilobytes} kB\nMemFree:        1 kB\nMemAvailable: 6000000 kB\n"
    )
    (card,) = tl.here([tmp_path / "smi.txt", tmp_path / "mem.txt"]).cards
    assert (card.id, card.memory_bytes) == (board, kilobytes * 1024)


def test_grades_of_one_chip_are_cards_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "npu.txt").write_text(NPU)
    answer = tl.here(tmp_path / "npu.txt")
    assert answer.cards[0].id == "huawei-ascend-910b4"
    assert answer.runs
    assert {run.engine for run in answer.runs} == {"lmdeploy"}  # the one with rules for NPUs
    assert find("910B3").id == "huawei-ascend-910b"
    assert find("Ascend 910B4").label_gb == 32
