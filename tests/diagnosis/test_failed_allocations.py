"""Out-of-memory errors: the sum line by line, and the line to change. Texts of c10/cuda/CUDACachingAllocator.cpp, 1.x and 2.x."""

from __future__ import annotations

from pathlib import Path

import pytest

from trilemma.ask.diagnosed import diagnose
from trilemma.diagnosis import Finding
from trilemma.quantities import GIB, MIB

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request}. GPU 0 has a total capacity of 79.10 GiB of which "
    "300.00 MiB is free. {process}Of the allocated memory {allocated} GiB is allocated by PyTorch, with 1.00 GiB allocated in "
    "private pools (e.g., CUDA Graphs), and {unallocated} GiB is reserved by PyTorch but unallocated. If reserved but "
)
THIS = "Including non-PyTorch memory, this process has {} GiB memory in use. "
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 15.90 GiB total capacity; {} GiB already allocated; "
    "13.75 MiB free; {} GiB reserved in total by PyTorch)"
)


def found(tmp_path: Path, text: str) -> Finding:
    path = tmp_path / "log"
    path.write_text("INFO a line\n" + text + "\n" + text + "\n")
    diagnosis = diagnose(path)
    assert diagnosis.files[0].kind == "out-of-memory"
    (one,) = diagnosis.findings
    assert (one.role, one.severity, one.evidence[0].line) == ("root", "error", 2)
    return one


def test_every_figure_is_a_fact(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        NEW.format(request="1.16 GiB", process=THIS.format("78.80"), allocated="60.00", unallocated="17.20")
    )
    facts = diagnose(path).files[0].facts
    assert facts["request_bytes"] == round(1.16 * GIB)
    assert facts["free_bytes"] == 300 * MIB
    assert (facts["allocated_bytes"], facts["private_pools_bytes"]) == (60 * GIB, GIB)
    assert facts["unallocated_bytes"] == round(17.2 * GIB)
    path.write_text(OLD.format("14.80", "14.98"))
    facts = diagnose(path).files[0].facts
    assert facts["unallocated_bytes"] == round(14.98 * GIB) - round(14.8 * GIB)
    assert facts["capacity_bytes"] == round(15.9 * GIB)


def test_fragmentation(tmp_path: Path) -> None:
    """Reserved far beyond allocated: the request fits into what is reserved (cases mem-04, mem-07: 39 GiB of 237)."""
    one = found(
        tmp_path, NEW.format(request="1.16 GiB", process=THIS.format("78.80"), allocated="60.00", unallocated="17.20")
    )
    assert one.id == "memory.fragmentation"
    assert "expandable_segments" in (one.fix or "")
    assert (
        "60.00 GiB allocated by PyTorch + 17.20 GiB reserved by PyTorch, not allocated + 1.60 GiB of this process"
        in one.claim
    )
    assert "= 79.10 GiB" in one.claim


def test_a_request_larger_than_what_is_reserved_is_no_fragmentation(tmp_path: Path) -> None:
    one = found(
        tmp_path, NEW.format(request="18.00 GiB", process=THIS.format("78.80"), allocated="60.00", unallocated="17.20")
    )
    assert one.id == "memory.out-of-memory"


@pytest.mark.parametrize("process", [
    "Process 1234 has 30.00 GiB memory in use. " + THIS.format("48.80"),
    "Process 1234 has 30.00 GiB memory in use. Process 99 has 48.80 GiB memory in use. ",  # as in a container
])  # fmt: skip
def test_another_process_is_named(tmp_path: Path, process: str) -> None:
    one = found(tmp_path, NEW.format(request="2.00 GiB", process=process, allocated="47.00", unallocated="0.10"))
    assert one.id == "memory.other-process"
    assert "1234 (30.00 GiB)" in (one.fix or "")
    assert one.predicted_effect == "30.00 GiB more are free"
    assert "= 79.10 GiB" in one.claim


def test_a_process_that_the_message_does_not_see(tmp_path: Path) -> None:
    one = found(
        tmp_path, NEW.format(request="2.00 GiB", process=THIS.format("48.80"), allocated="47.00", unallocated="0.10")
    )
    assert one.id == "memory.unseen-process"
    assert "30.01 GiB held by what the message does not name" in one.claim


def test_the_context_alone_accuses_nobody(tmp_path: Path) -> None:
    assert found(tmp_path, OLD.format("14.80", "14.98")).id == "memory.out-of-memory"
    assert found(tmp_path, OLD.format("7.80", "7.98")).id == "memory.unseen-process"
