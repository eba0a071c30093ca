"""nccl-tests: bandwidths as facts, and beside what the fabric has.

Rows of aws-samples/awsome-distributed-training@7217859 and GoogleCloudPlatform/cluster-toolkit@1047080.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trilemma.ask.diagnosed import diagnose
from trilemma.diagnosis import Diagnosis

HEAD = (
    "{}#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "{}#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
P5 = (
    "0:            8             2     float     sum      -1    69.12    0.00    0.00      0    72.43    0.00    0.00      0\n"
    "0:  17179869184    4294967296     float     sum      -1    66132  259.78  487.09      0    66109  259.87  487.26      0\n"
)
P4DE = (
    "0:            8             2     float     sum      -1    164.3    0.00    0.00      0    163.3    0.00    0.00      0\n"
    "0:   2147483648     536870912     float     sum      -1    51406   41.78   78.33      0    51406   41.77   78.33      0\n"
)
A3HIGH = (
    "     1048576         16384     float    none      -1    996.7    1.05    0.99    N/A   1007.1    1.04    0.98    N/A\n"
    "   536870912       8388608     float    none      -1   7098.6   75.63   70.90    N/A   7054.3   76.11   71.35    N/A\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 30.9622 \n"
)
RANK = "#  Rank {:2} Group  0 Pid  {} on {:>10} device {:2} [0x53] NVIDIA H100 80GB HBM3\n"


def judged(tmp_path: Path, text: str) -> Diagnosis:
    path = tmp_path / "out.txt"
    path.write_text(text)
    return diagnose(path)


@pytest.mark.parametrize(("rows", "large", "small_us", "collective"), [
    (HEAD.format("0: ", "0: ") + P5, 487.09, 69.12, "all-reduce"),
    (HEAD.format("0: ", "0: ") + P4DE, 78.33, 164.3, "all-reduce"),
    (HEAD.format("", "") + A3HIGH, 70.90, 996.7, "all-gather or all-to-all"),
])  # fmt: skip
def test_bandwidth_of_large_messages(tmp_path: Path, rows: str, large: float, small_us: float, collective: str) -> None:
    found = judged(tmp_path, rows)
    assert not found.findings
    assert "rank lines" in found.missing[0]  # the GPUs are not named
    facts = found.files[0].facts
    assert found.files[0].kind == "nccl-tests"
    assert (facts["large_message_busbw_gb_s"], facts["small_message_time_us"]) == (large, small_us)
    assert (facts["collective"], facts["ranks"], facts["wrong_results"]) == (collective, 16, 0)


def node(gb_s: float, nodes: int = 1, wrong: int = 0) -> str:
    ranks = 8 * nodes
    header = "".join(RANK.format(at, 100 + at, f"host-{at // 8}", at % 8) for at in range(ranks))
    algorithm = gb_s / (2 * (ranks - 1) / ranks)
    row = f"  8589934592  2147483648 float sum -1 33605 {algorithm:.2f} {gb_s:.2f} {wrong} 33628 {algorithm:.2f} {gb_s:.2f} 0\n"
    return header + HEAD.format("", "") + row


def one(tmp_path: Path, *arguments: Any) -> tuple[str, ...]:
    return tuple(finding.id for finding in judged(tmp_path, node(*arguments)).findings)


def test_inside_a_node_the_link_is_expected(tmp_path: Path) -> None:
    """370 (ring) and 480 GB/s (NVLS) on eight H100 are well (NVIDIA/nccl-tests issue 212); 48 is the slow mode that was seen."""
    assert one(tmp_path, 480) == one(tmp_path, 370) == ()
    slow = judged(tmp_path, node(48)).findings[0]
    assert slow.id == "collectives.slow"
    assert (slow.expected, slow.observed, slow.confidence) == ("369 – 481.5 GB/s", "48 GB/s", "supported")
    assert slow.evidence[0].line == 11


def test_between_nodes_the_network_is_expected_and_less_sure(tmp_path: Path) -> None:
    assert one(tmp_path, 487.09, 2) == one(tmp_path, 330, 2) == ()
    slow = judged(tmp_path, node(80, 2)).findings[0]
    assert (slow.expected, slow.confidence) == ("320 – 800 GB/s", "hypothesis")


def test_wrong_results_are_an_error(tmp_path: Path) -> None:
    assert one(tmp_path, 480, 1, 3) == ("collectives.wrong-results",)
