"""``trilemma doctor``: faults of machines as their tools print them, and what could not be seen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asking import document
from machines import MACHINES, table
from trilemma.cli.main import main
from trilemma.data.files import read_data
from trilemma.diagnosis.reading import read_bytes
from trilemma.diagnosis.rules.known_bad import within
from trilemma.machine.examination import examine
from trilemma.machine.machine import machine_of
from trilemma.report.schemas import schema_of

H100 = table("NVIDIA H100 80GB HBM3", 81559, 700, 4, driver="550.54.15", cuda="12.4")


def topology(rows: list[list[str]]) -> str:
    """``nvidia-smi topo -m`` of these paths."""
    head = (
        "        " + "    ".join(f"GPU{number}" for number in range(len(rows))) + "    CPU Affinity    NUMA Affinity\n"
    )
    lines = (f"GPU{number}    {'    '.join(row)}    0-47,96-143     0\n" for number, row in enumerate(rows))
    return head + "".join(lines) + "\nLegend:\n"


def examined(*texts: str) -> Any:
    return examine(
        machine_of([read_bytes(f"output {at}", text.encode()) for at, text in enumerate(texts)], recorded=True)
    )


def found(*texts: str) -> dict[str, Any]:
    return {one.id: one for one in examined(*texts).findings}


def states(*texts: str) -> dict[str, str]:
    return {check.area: check.state for check in examined(*texts).checks}


FULL = [
    ["X", "NV18", "NV18", "NV18"],
    ["NV18", "X", "NV18", "NV18"],
    ["NV18", "NV18", "X", "NV18"],
    ["NV18", "NV18", "NV18", "X"],
]


def test_a_whole_machine_is_well() -> None:
    told = states(H100, topology(FULL))
    assert {told[area] for area in ("cards", "driver", "formats", "links", "NUMA", "memory errors")} == {"ok"}
    assert told["kernel log"] == "not seen"
    assert examined(H100, topology(FULL)).healthy


def test_h100_without_links_is_a_fault() -> None:
    rows = [["X" if one == other else "PIX" for one in range(4)] for other in range(4)]
    told = found(H100, topology(rows))["links.absent"]
    assert told.severity == "error"
    assert told.observed == "PCIe (PIX)"
    assert states(H100, topology(rows))["links"] == "fault"
    pcie_cards = table("NVIDIA L40S", 46068, 350, 4, driver="550.54.15", cuda="12.4")
    assert "links.absent" not in found(pcie_cards, topology(rows))


def test_a_gpu_with_fewer_links_stands_out() -> None:
    rows = [list(row) for row in FULL]
    for other in (0, 1, 2):
        rows[3][other] = rows[other][3] = "NV16"
    told = found(H100, topology(rows))["links.uneven"]
    assert "3 of 6 pairs" in told.claim
    assert "GPU 3" in told.claim


@pytest.mark.parametrize("rows", [
    [["X", "NV4", "SYS", "SYS"], ["NV4", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "NV4"], ["SYS", "SYS", "NV4", "X"]],  # bridges
    [["X", "NV1", "NV2", "SYS"], ["NV1", "X", "SYS", "NV2"], ["NV2", "SYS", "X", "NV1"], ["SYS", "NV2", "NV1", "X"]],  # a cube
])  # fmt: skip
def test_bridges_and_cubes_are_made_so(rows: list[list[str]]) -> None:
    assert "links.uneven" not in found(topology(rows))


def _version_at(bounds: str) -> str:
    """A version within bounds: the lower one, or just under the upper."""
    least = re.search(r">=(\d[\d.]*)", bounds)
    if least is not None:
        return least[1] if "." in least[1] else f"{least[1]}.1"
    upper = re.search(r"<(\d[\d.]*)", bounds)
    assert upper is not None
    numbers = [int(part) for part in upper[1].split(".")]
    numbers = [*numbers[:-1], numbers[-1] - 1] if numbers[-1] else [numbers[0] - 1]
    return ".".join(map(str, [*numbers, 9]))


CARD_OF = {">=10": "NVIDIA B200", ">=10,<12": "NVIDIA B200", "<8": "Tesla T4", "<7": None}


@pytest.mark.parametrize("row", read_data("diagnosis/known_bad.toml")["row"], ids=lambda row: row["id"])
def test_every_bad_pair_is_told_with_its_source(row: dict[str, Any]) -> None:
    assert row["source"]
    lines, driver, card = [], "550.54.15", "NVIDIA H100 80GB HBM3"
    for name, bounds in row["when"].items():
        if name == "driver":
            driver = f"{int(_version_at(bounds).split('.')[0])}.10"
        elif name == "capability":
            if (special := CARD_OF[bounds]) is None:
                pytest.skip("the catalogue has no card so old")
            card = special
        elif name == "torch-cuda":
            major, minor = [*_version_at(bounds).split("."), "0"][:2]
            lines.append(f"torch==2.6.0+cu{major}{minor[0]}")
        else:
            lines.append(f"{name}=={_version_at(bounds)}")
    smi = table(card, 81559, 300, 1, driver=driver, cuda="12.4")
    told = found(smi, "\n".join(lines) + "\n")
    assert f"version.{row['id']}" in told
    assert row["source"] in told[f"version.{row['id']}"].fix


def test_versions_that_go_together_are_well() -> None:
    smi = table("NVIDIA B200", 183359, 1000, 8, driver="580.95.05", cuda="13.0")
    pip = "torch==2.9.1+cu130\nvllm==0.13.0\ntransformers==4.57.6\nnumpy==2.2.6\nnvidia-nccl-cu13==2.28.9\nflash-attn==2.8.3\n"
    assert not [one for one in found(smi, pip) if one.startswith("version.")]


@pytest.mark.parametrize(("version", "bounds", "inside"), [
    ("2.30.7", ">=2.30.4,<2.31", True), ("2.30.3", ">=2.30.4,<2.31", False), ("0.11.2rc1", "<0.12", True),
    ("5.0.0.dev0", ">=5", True), ("12.8", "<12.8", False), ("nightly", ">=0", False),
])  # fmt: skip
def test_bounds(version: str, bounds: str, inside: bool) -> None:
    assert within(version, bounds) is inside


def test_limits_of_a_container_are_judged_beside_gpus() -> None:
    limits = "max locked memory (kbytes, -l) 64\nshm 65536 0 65536 0% /dev/shm\n"
    told = found(H100, limits)
    assert told["host.shared-memory"].severity == "warning"
    assert told["host.locked-memory"].severity == "context"
    assert not found(limits)
    assert not found(H100, "max locked memory (kbytes, -l) unlimited\nshm 33554432 0 0 0% /dev/shm\n")


def test_a_card_that_the_driver_lost() -> None:
    bus = "".join(
        f"000{n}:00:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]\n"
        for n in range(5)
    )
    told = found(H100, bus)["gpu.not-listed"]
    assert "1 of 5 GPUs" in told.claim
    assert "gpu.not-listed" not in found(H100, bus.replace("0004:00:00.0 3D", "0004:00:00.0 XX"))


def test_memory_that_is_missing_and_power_that_is_held_back() -> None:
    told = found(table("NVIDIA H100 80GB HBM3", 71559, 500, 1, driver="550.54.15", cuda="12.4"))
    assert told["gpu.memory-short"].severity == "warning"
    assert told["gpu.power-cap"].severity == "context"
    assert "500 W, 71% of" in told["gpu.power-cap"].claim


def test_exit_codes_and_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    well, ill, neither = (tmp_path / name for name in ("well", "ill", "neither"))
    well.write_text(H100)
    ill.write_text(table("NVIDIA H100 80GB HBM3", 81559, 700, 2, driver="550.54.15", cuda="12.4", ecc="4"))
    neither.write_text("nothing of the kind\n")
    assert main(["doctor", str(well)]) == 0
    assert main(["doctor", str(ill)]) == 1
    assert "FAULT memory errors" in capsys.readouterr().out
    assert main(["doctor", str(neither)]) == 2
    assert "holds nothing that a machine's tools print" in capsys.readouterr().err
    jsonschema.validate(document(f"doctor {ill}", code=1), schema_of("doctor"))


def test_a_machine_without_gpus_says_what_it_could_not_see(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^\? +cards", told, re.MULTILINE)
    assert "NVIDIA GPUs: nvidia-smi is not on this machine" in told
    assert "could not be seen" in told


PIECES = st.sampled_from(
    [line for machine in MACHINES for line in machine.text.splitlines()] + ["torch==1", "\x00", "GPU0 X", ""]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES | st.text(max_size=40), max_size=30), st.booleans())
def test_any_mixture_of_lines_is_examined(lines: list[str], twice: bool) -> None:
    text = "\n".join(lines)
    checks = examined(text, text) if twice else examined(text)
    assert len(checks.checks) >= 12


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.sampled_from([machine.text for machine in MACHINES]), st.integers(0, 4000))
def test_damaged_outputs_are_examined(noise: bytes, text: str, at: int) -> None:
    damaged = text.encode()[:at] + noise + text.encode()[at:]
    examine(machine_of([read_bytes("damaged", damaged)]))
