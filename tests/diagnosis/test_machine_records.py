"""Records of machines, schedulers and allocators: the kind by content, the facts, and what is wrong.

Shapes: leptonai/gpud @4a8de33 testdata (InfiniBand, fabric manager, lspci), influxdata/telegraf @b272631 (Slurm),
NVIDIA/dcgm-exporter @d5e5f51, facebookresearch/HolisticTraceAnalysis @f4d0062 (memory timeline).
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from trilemma.ask.diagnosed import Diagnosed, diagnose
from trilemma.quantities import GIB, MIB


def judged(tmp_path: Path, text: str | bytes, name: str = "file") -> Diagnosed:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return diagnose(path)


def ids(found: Diagnosed) -> list[str]:
    return [one.id for one in found.findings if one.severity != "context"]


def ports(tmp_path: Path, **values: Any) -> Diagnosed:
    """A tree of /sys/class/infiniband: names as ``mlx5_0__link_downed``."""
    for name, value in values.items():
        device, _, what = name.partition("__")
        folder = tmp_path / "ib" / device / "ports" / "1"
        place = folder / what if what in ("state", "rate", "phys_state") else folder / "counters" / what
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{value}\n")
    return diagnose(tmp_path / "ib")


def test_ports_that_are_well_have_no_finding(tmp_path: Path) -> None:
    """The first card of gpud's H100: 14 bad packets of 317,548,853,677."""
    found = ports(tmp_path, mlx5_0__state="4: ACTIVE", mlx5_0__rate="400 Gb/sec (4X NDR)", mlx5_0__link_downed=0,
                  mlx5_0__port_rcv_errors=14, mlx5_0__port_rcv_packets=317548853677)  # fmt: skip
    assert {one.kind for one in found.files} == {"infiniband-port"}
    assert not ids(found)
    (told,) = found.findings
    assert "14 packets with errors, of 317,548,853,677 packets" in told.claim


@pytest.mark.parametrize(("change", "expected"), [
    ({"mlx5_1__link_downed": 255}, ["network.link-downed"]),
    ({"mlx5_1__state": "1: DOWN"}, ["network.port-down"]),
    ({"mlx5_1__rate": "100 Gb/sec (2X HDR)"}, ["network.port-slow"]),
    ({"mlx5_1__symbol_error": 400_000, "mlx5_1__port_rcv_packets": 1_000_000}, ["network.port-errors"]),
])  # fmt: skip
def test_ports_that_are_not_well(tmp_path: Path, change: dict[str, Any], expected: list[str]) -> None:
    """The second card of gpud's H100 says 255 times down, where its counter ends."""
    found = ports(tmp_path, mlx5_0__state="4: ACTIVE", mlx5_0__rate="400 Gb/sec (4X NDR)", **change)
    assert ids(found) == expected
    if "mlx5_1__link_downed" in change:
        assert "at least 255 times" in found.findings[0].claim


FABRIC = """\
[Feb 27 2025 14:10:02] [INFO] [tid 1808] multicast group 1 is allocated.
[Feb 27 2025 14:11:02] [INFO] [tid 1808] multicast group 1 is freed.
[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch {how} error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 \
physical id 3 port 61
"""


@pytest.mark.parametrize(("how", "expected"), [("non-fatal", []), ("fatal", ["switch.sxid-12028"])])
def test_the_fabric_manager(tmp_path: Path, how: str, expected: list[str]) -> None:
    found = judged(tmp_path, FABRIC.format(how=how))
    facts = found.files[0].facts
    assert found.files[0].kind == "fabric-manager-log"
    assert facts["multicast_teams"] == {"allocated": 1, "freed": 1}
    assert facts["switch_errors"] == {"12028": 1}
    assert ids(found) == expected
    assert "port 61" in found.findings[0].claim


def test_a_list_of_devices(tmp_path: Path) -> None:
    lines = [
        *(
            f"000{at}:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)"
            for at in range(8)
        ),
        *(f"001{at}:00:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:1af1] (rev a1)" for at in range(6)),
        *(
            f"010{at}:00:00.0 Infiniband controller [0207]: Mellanox Technologies MT28908 Family [15b3:101c]"
            for at in range(8)
        ),
    ]
    facts = judged(tmp_path, "\n".join(lines)).files[0]
    assert facts.kind == "lspci"
    assert (facts.facts["gpus"], facts.facts["switches"], facts.facts["infiniband_cards"]) == (8, 6, 8)


def test_counters_that_are_left_out_are_asked_for(tmp_path: Path) -> None:
    text = (
        "# Format\nDCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).\n"
        "# DCGM_FI_PROF_SM_ACTIVE,  gauge, Ratio of cycles an SM has at least 1 warp assigned.\n"
    )
    found = judged(tmp_path, text)
    assert found.files[0].kind == "dcgm-counters"
    assert (found.files[0].facts["collected"], found.files[0].facts["left_out"]) == (1, 1)
    assert "DCGM_FI_PROF_SM_ACTIVE" in found.missing[0]


def test_memory_over_time(tmp_path: Path) -> None:
    """What was there before has no time; an action of 4 gives back."""
    events = [[-1, 1, 1000, 0], [5, 2, 300, 4], [7, 2, 500, 5], [9, 4, -500, 5], [8, 4, -300, 4]]
    found = judged(tmp_path, json.dumps(events)).files[0]
    assert found.kind == "memory-timeline"
    assert found.facts["peak_bytes"] == 1800
    assert found.facts["peak_bytes_by_category"] == {"parameters": 1000, "activations": 300, "gradients": 500}
    assert found.facts["last_bytes"] == 1000


def test_slurm_over_rest(tmp_path: Path) -> None:
    meta = {"Slurm": {"version": {"major": 22}, "release": "22.05.9"}}
    nodes = [
        {"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": "Kill task failed"},
        {"name": "n2", "state": "idle"},
    ]
    found = judged(tmp_path, json.dumps({"meta": meta, "nodes": nodes}))
    assert found.files[0].kind == "slurm-rest"
    assert found.files[0].facts["nodes_by_state"] == {"IDLE": 2}
    assert not ids(found)
    assert "n1: Kill task failed" in found.findings[0].claim
    jobs = [{"job_id": 7, "job_state": ["OUT_OF_MEMORY"], "name": "train"}]
    assert ids(judged(tmp_path, json.dumps({"meta": meta, "jobs": jobs}))) == ["host.out-of-memory"]


@pytest.mark.parametrize("text", [
    "JobID|JobName|State|ExitCode\n12|train|OUT_OF_MEMORY|0:125\n12.batch|batch|OUT_OF_MEMORY|0:125\n13|x|COMPLETED|0:0\n",
    "JobID           JobName      State ExitCode\n------- ------- ----- ------\n12                train OUT_OF_ME+    0:125\n"
    "13                    x  COMPLETED      0:0\n",
])  # fmt: skip
def test_accounting(tmp_path: Path, text: str) -> None:
    found = judged(tmp_path, text)
    assert found.files[0].kind == "slurm-accounting"
    assert found.files[0].facts["jobs_by_state"] == {"OUT_OF_MEMORY": 1, "COMPLETED": 1}
    assert ids(found) == ["host.out-of-memory"]


def snapshot(*segments: dict[str, Any], trace: list[dict[str, Any]] | None = None) -> bytes:
    return pickle.dumps(
        {"segments": list(segments), "device_traces": [trace or []], "allocator_settings": {}}, protocol=4
    )


def segment(total: int, *blocks: tuple[str, int], stream: int = 0) -> dict[str, Any]:
    allocated = sum(size for state, size in blocks if state == "active_allocated")
    active = sum(size for state, size in blocks if state != "inactive")
    return {
        "total_size": total, "allocated_size": allocated, "active_size": active, "requested_size": allocated, "stream": stream,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
        "blocks": [{"state": state, "size": size, "frames": [{"name": "forward", "filename": "/a/model.py", "line": 12}]}
                   for state, size in blocks],
    }  # fmt: skip


def test_a_snapshot_with_an_overhang(tmp_path: Path) -> None:
    """The proportions of the snapshot that the research measured: 58,280 MiB reserved, 52,332 allocated, 10.2 % over."""
    found = judged(
        tmp_path, snapshot(segment(58_280 * MIB, ("active_allocated", 52_332 * MIB), ("inactive", 5_948 * MIB)))
    )
    facts = found.files[0].facts
    assert found.files[0].kind == "memory-snapshot"
    assert (facts["reserved_bytes"], facts["allocated_bytes"], facts["unallocated_bytes"]) == (
        58_280 * MIB, 52_332 * MIB, 5_948 * MIB,
    )  # fmt: skip
    assert facts["allocated_bytes_by_place"] == {"forward (model.py:12)": 52_332 * MIB}
    assert ids(found) == ["memory.fragmentation"]
    assert "expandable_segments" in (found.findings[0].fix or "")
    assert not ids(
        judged(tmp_path, snapshot(segment(100 * MIB, ("active_allocated", 96 * MIB), ("inactive", 4 * MIB))))
    )


def test_a_snapshot_of_a_failure(tmp_path: Path) -> None:
    frames = [{"name": "loss", "filename": "/a/train.py", "line": 7}]
    trace = [{"action": "oom", "size": 2 * GIB, "device_free": GIB, "frames": frames}]
    (root,) = judged(tmp_path, snapshot(segment(GIB, ("active_allocated", GIB)), trace=trace)).findings
    assert (root.id, root.role) == ("memory.out-of-memory", "root")
    assert "2.00 GiB failed with 1.00 GiB free at loss (train.py:7)" in root.claim


def test_a_snapshot_that_would_run_something_runs_nothing(tmp_path: Path) -> None:
    body = b"\x80\x04cos\nsystem\n(S'touch ran'\ntR."
    assert judged(tmp_path, body).exit_code == 2
    assert not Path("ran").exists()


DMON = """\
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk
# Idx      W      C      C      %      %      %      %    MHz    MHz
{rows}
"""


def dmon(*gpus: tuple[int, int]) -> str:
    rows = (f"    {at}    300     60      -    {sm}     40      0      0   2619   {clock}"
            for _ in range(5) for at, (sm, clock) in enumerate(gpus))  # fmt: skip
    return DMON.format(rows="\n".join(rows))


@pytest.mark.parametrize(("gpus", "expected"), [
    (((98, 1980), (97, 1980), (99, 1965), (98, 1980)), []),
    (((25, 1980), (24, 1980), (26, 1980), (25, 1980)), ["speed.one-gpu-at-a-time"]),
    (((98, 1980), (97, 1980), (99, 1400), (98, 1980)), ["gpu.slow-clock"]),
])  # fmt: skip
def test_samples_of_gpus(tmp_path: Path, gpus: tuple[tuple[int, int], ...], expected: list[str]) -> None:
    found = judged(tmp_path, dmon(*gpus))
    assert found.files[0].kind == "nvidia-smi-dmon"
    assert (found.files[0].facts["gpus"], found.files[0].facts["samples"]) == (4, 20)
    assert ids(found) == expected


def stack(process: int, *frames: str) -> str:
    lines = "\n".join(f"    {frame}" for frame in frames)
    return f'Process {process}: python train.py\nPython v3.11.7\n\nThread {process} (active): "MainThread"\n{lines}\n'


def test_the_process_that_stands_elsewhere(tmp_path: Path) -> None:
    waiting = ("all_reduce (distributed_c10d.py:2500)", "step (train.py:90)")
    text = "".join(stack(at, *waiting) for at in range(7)) + stack(
        7, "__next__ (dataloader.py:630)", "step (train.py:80)"
    )
    found = judged(tmp_path, text)
    assert found.files[0].kind == "py-spy"
    assert found.files[0].facts["processes"] == 8
    assert ids(found) == ["hang.odd-process"]
    assert "process 7 in __next__ (dataloader.py)" in found.findings[0].claim
    assert not ids(judged(tmp_path, "".join(stack(at, *waiting) for at in range(8))))


def test_tables_of_profilers(tmp_path: Path) -> None:
    nsys = (
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\n60.0,3000000,10,300000,sm90_xmma_gemm_bf16bf16\n"
        "40.0,2000000,5,400000,ncclDevKernel_AllReduce_Sum_bf16_RING_LL\n"
    )
    facts = judged(tmp_path, nsys).files[0]
    assert facts.kind == "profiler-table"
    assert facts.facts["kernel_ms_by_kind"] == {"gemm": 3.0, "communication": 2.0}
    ncu = (
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","gemm_kernel","Duration","usecond","12.5"\n'
        '"0","gemm_kernel","DRAM Throughput","%","81.0"\n'
    )
    facts = judged(tmp_path, ncu).files[0]
    assert (facts.facts["kernel_ms"], facts.facts["mean_dram_throughput_percent"]) == (0.0125, 81.0)


def test_records_of_collectives(tmp_path: Path) -> None:
    """JSON lines of NCCL's inspector."""
    told = {"coll": "AllReduce", "coll_msg_size_bytes": 1048576, "coll_exec_time_us": 50.0, "coll_busbw_gbs": 36.7}
    line = {"header": {"id": "0x1", "rank": 3, "n_ranks": 8, "nnodes": 1}, "coll_perf": told}
    found = judged(tmp_path, "\n".join(json.dumps(line) for _ in range(3))).files[0]
    assert found.kind == "nccl-inspector"
    assert found.facts["n_ranks"] == 8
    assert found.facts["collectives"]["AllReduce of 1048576 bytes"]["count"] == 3
    assert found.facts["collectives"]["AllReduce of 1048576 bytes"]["busbw_gb_s"] == 36.7


def test_metrics_with_faults(tmp_path: Path) -> None:
    text = (
        "# TYPE DCGM_FI_DEV_XID_ERRORS gauge\n"
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0\nDCGM_FI_DEV_XID_ERRORS{gpu="3"} 79\n'
        "# TYPE DCGM_FI_DEV_CLOCK_THROTTLE_REASONS gauge\n"
        'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0"} 1\nDCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="2"} 64\n'
        "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total 12\n"
    )
    assert ids(judged(tmp_path, text)) == ["gpu.xid-79", "gpu.clocks-held-down", "serving.preemptions"]


def test_tables_are_told_by_their_columns(tmp_path: Path) -> None:
    found = judged(tmp_path, "type,time ms,percent\nbusy,1.5,50\nidle,1.5,50\n").files[0]
    assert (found.kind, found.facts["columns"], found.facts["rows"]) == ("table", ["type", "time ms", "percent"], 2)
    assert judged(tmp_path, "one, two\nthree\n").files[0].kind == "text"
