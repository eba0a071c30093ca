"""Kernel logs: Xid and SXid, what is the root and what only follows, what was mended since.

The lines have the form of leptonai/gpud@4a8de33a's dmesg-with-xid-119.log; the cases are those of NVIDIA/NVSentinel issues 1710
(Xid 45), 1120 (duplicates), 1252 (162 cancels 163), 155 (a lost GPU without an Xid).
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import pytest

from trilemma.ask.diagnosed import diagnose
from trilemma.diagnosis import Diagnosis
from trilemma.diagnosis.rules.gpu_errors import meanings

STAMP = "[Sun Feb 23 16:24:{:02d} 2025] "
GSP = "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP!"


def judged(tmp_path: Path, *lines: str) -> Diagnosis:
    path = tmp_path / "dmesg.log"
    path.write_text("\n".join(STAMP.format(at % 60) + line for at, line in enumerate(lines)) + "\n")
    return diagnose(path)


def xid(number: int, text: str = "pid=7, name=python, text", gpu: str = "0000:9b:00") -> str:
    return f"NVRM: Xid (PCI:{gpu}): {number}, {text}"


def test_xid_119_is_the_root(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad",
        GSP + " function 103",
        GSP + " function 10",
        GSP + " function 10",
    )
    (root,) = found.findings
    assert (root.id, root.role, root.severity) == ("gpu.xid-119", "root", "error")
    assert (root.evidence[0].line, root.evidence[1].line) == (2, 3)
    assert "3 lines of 2 distinct events" in root.claim
    assert "reset" in (root.fix or "")
    assert found.files[0].kind == "kernel-log"
    assert found.files[0].facts["xids"] == {"119": {"events": 2, "lines": 3, "gpus": ["0000:9b:00"]}}


def test_xid_45_after_an_abort_is_context(tmp_path: Path) -> None:
    found = judged(tmp_path, xid(45, "pid=8, name=python, Ch 00000008"), xid(45, "pid=8, name=python, Ch 00000009"))
    assert [(one.role, one.severity) for one in found.findings] == [("context", "context")]
    assert found.exit_code == 0


def test_xid_45_and_faults_of_programs_follow_a_hardware_error(tmp_path: Path) -> None:
    found = judged(tmp_path, xid(48), xid(45), xid(31), xid(13, gpu="0000:3b:00"))
    by_id = {one.id: one for one in found.findings}
    assert by_id["gpu.xid-48"].role == "root"
    assert (by_id["gpu.xid-45"].role, by_id["gpu.xid-31"].role) == ("cascade", "cascade")
    assert by_id["gpu.xid-13"].role == "root"  # another GPU
    assert found.findings[0].id == "gpu.xid-48"


def test_a_lost_gpu_without_an_xid_is_found(tmp_path: Path) -> None:
    one_line = judged(tmp_path, "NVRM: GPU 0000:8b:00.0: GPU has fallen off the bus.")
    assert one_line.findings[0].id == "gpu.lost"
    assert "0000:8b:00" in one_line.findings[0].claim
    three = judged(
        tmp_path, "NVRM: The NVIDIA GPU 0000:05:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )  # fmt: skip
    assert "GPU 0000:05:00 has fallen" in three.findings[0].claim


def test_xid_79_is_told_once(tmp_path: Path) -> None:
    found = judged(
        tmp_path, xid(79, "GPU has fallen off the bus."), "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
    )
    assert [one.id for one in found.findings] == ["gpu.xid-79"]


@pytest.mark.parametrize("repair", [
    "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
    "Linux version 6.8.0-60-generic (buildd@lcy02)",
])  # fmt: skip
def test_a_later_repair_cancels(tmp_path: Path, repair: str) -> None:
    assert judged(tmp_path, xid(95), repair).exit_code == 0
    assert judged(tmp_path, xid(95), repair, xid(95)).exit_code == 1
    assert judged(tmp_path, repair, xid(95)).exit_code == 1


def test_xid_162_cancels_163_and_a_required_reset_cancels_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, xid(163), xid(162)).exit_code == 0
    changed = xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert judged(tmp_path, xid(95), changed).exit_code == 1


def test_a_repair_of_memory_is_context(tmp_path: Path) -> None:
    assert judged(tmp_path, xid(63, "Row Remapper: New row marked for remapping")).exit_code == 0
    assert judged(tmp_path, xid(64, "Row Remapper: Error writing to InfoROM")).exit_code == 1


@pytest.mark.parametrize(
    ("text", "code"), [("Non-fatal, Link 32 egress", 0), ("Fatal, Link 46 RX Short Error Rate", 1)]
)
def test_switch_errors(tmp_path: Path, text: str, code: int) -> None:
    found = judged(tmp_path, f"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, {text}")
    assert found.findings[0].id == "switch.sxid-12028"
    assert found.exit_code == code


def test_a_quiet_log_has_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(
        "6,3964,206764307,-;nvidia-nvswitch2: open (major=510)\n6,4004,9184,-;perf: interrupt took too long\n"
    )
    found = diagnose(path)
    assert not found.findings
    assert found.files[0].kind == "kernel-log"


def test_the_catalogue_is_whole() -> None:
    catalogue = meanings()
    assert len(catalogue["xid"]) >= 60
    for number, one in catalogue["xid"].items():
        assert one["kind"] in ("hardware", "driver", "link", "application", "memory-event", "cleanup", "information"), (
            number
        )
        assert one["action"] in catalogue["actions"], number
    assert all(str(one) in catalogue["xid"] for pair in catalogue["repaired_by"].items() for one in pair)


@pytest.mark.slow
def test_800_000_lines_of_29_events(tmp_path: Path) -> None:
    path = tmp_path / "syslog"
    messages = [xid(95, f"pid={1000 + at}, name=python, Uncontained LTC/SM error") for at in range(29)]
    with path.open("w") as stream:
        for at in range(800_000):
            stream.write(f"Feb 23 16:{at // 60 % 60:02d}:{at % 60:02d} node kernel: {messages[at % 29]}\n")
    before = time.process_time()
    found = diagnose(path)
    assert time.process_time() - before < 10
    assert (found.files[0].facts["xid_events"], found.files[0].facts["xid_lines"]) == (29, 800_000)
    assert len(found.findings) == 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak * (1 if sys.platform == "darwin" else 1024) < 2 << 30  # of the whole test process
