"""Logs of engines, NCCL and trainers: what stands in them, and what is wrong.

Line shapes: vLLM issues 11251, 18446, 18115, 2418; areal-project/AReaL issue 639; aws-samples/awsome-distributed-training
@7217859; Megatron-LM, torchtitan and Transformers print the last three.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trilemma.ask.diagnosed import diagnose
from trilemma.diagnosis import Diagnosis
from trilemma.quantities import GIB

BUDGET = "INFO worker: the current vLLM instance can use total_gpu_memory (15.77GiB) x gpu_memory_utilization (0.90) = 14.20GiB"
SUM = (
    "INFO worker.py: model weights take 7.51GiB; non_torch_memory takes 0.39GiB; PyTorch activation peak memory takes 2.53GiB; "
    "the rest of the memory reserved for KV Cache is 3.76GiB."
)
REFUSED = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache "
    "(79392)."
)
PREEMPTED = (
    "WARNING scheduler.py: Sequence group 147 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache "
    "space. total_num_cumulative_preemption=51"
)
USAGE = "INFO loggers.py: Engine 000: Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 91.2%, Prefix cache hit rate: 12.5%"


def judged(tmp_path: Path, *lines: str) -> Diagnosis:
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines) + "\n")
    return diagnose(path)


def ids(found: Diagnosis) -> list[str]:
    return [one.id for one in found.findings if one.severity != "context"]


def test_a_refusal_to_start_comes_with_its_sum(tmp_path: Path) -> None:
    found = judged(tmp_path, BUDGET, SUM, REFUSED)
    (root,) = found.findings
    assert (root.id, root.role, root.confidence) == ("start-up.context", "root", "established")
    lines = "budget 14.20 GiB - weights 7.51 GiB - outside PyTorch 0.39 GiB - peak activation 2.53 GiB = cache 3.76 GiB"
    assert lines in root.claim
    assert (root.expected, root.observed) == ("cache for 131,072 tokens", "79,392 tokens")
    assert "1.65 times the memory" in (root.fix or "")
    assert root.evidence[0].line == 3
    facts = found.files[0].facts
    assert (found.files[0].kind, facts["engine"], facts["outcome"]) == ("engine-log", "vllm", "kv_too_small")
    assert facts["weights_bytes"] == round(7.51 * GIB)


def test_a_start_that_works_is_healthy(tmp_path: Path) -> None:
    found = judged(tmp_path, BUDGET, SUM, "INFO: Application startup complete.", USAGE)
    assert not found.findings
    assert found.files[0].facts["outcome"] == "ok"
    assert found.files[0].facts["prefix_cache_hit_rate"] == 0.125


def test_preemptions_are_counted_as_the_engine_counts(tmp_path: Path) -> None:
    found = judged(tmp_path, BUDGET, SUM, "INFO: Application startup complete.", USAGE, PREEMPTED)
    assert ids(found) == ["serving.preemptions"]
    assert found.findings[0].observed == "51, cache 91% full at most"


def test_too_little_free_memory_names_the_share_that_is_there(tmp_path: Path) -> None:
    text = (
        "ValueError: Free memory on device cuda:0 (60.00/79.10 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    (root,) = judged(tmp_path, text).findings
    assert (root.id, root.predicted_effect) == ("start-up.free-memory", "11.19 GiB are missing")
    assert "at most 0.75" in (root.fix or "")


def test_an_allocation_that_failed_is_told_once(tmp_path: Path) -> None:
    failed = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of "
        "which 1.00 GiB is free. Including non-PyTorch memory, this process has 14.77 GiB memory in use. Of the allocated memory "
        "14.00 GiB is allocated by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated."
    )
    assert ids(judged(tmp_path, BUDGET, failed)) == ["memory.out-of-memory"]


SOCKET = "host-1:166:207 [0] NCCL INFO NET/Socket : Using [0]bond0:10.0.0.1<0>"


def test_tcp_instead_of_infiniband(tmp_path: Path) -> None:
    """Case net-01: 1 GB in 370 ms instead of 50 ms."""
    (root,) = judged(tmp_path, "host-1:166:166 [0] NCCL INFO NCCL version 2.26.2+cuda12.2", SOCKET).findings
    assert (root.id, root.role, root.evidence[0].line) == ("collectives.over-tcp", "root", 2)
    well = judged(tmp_path, SOCKET.replace("Socket", "IB"), "host-1:166:207 [0] NCCL INFO Using network IB")
    assert not well.findings
    assert well.files[0].facts["networks"] == {"IB": 2}


def test_a_timeout_is_a_symptom_of_those_who_waited(tmp_path: Path) -> None:
    text = (
        "[rank3]:[E1130 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=45265, "
        "OpType=ALLTOALL, NumelIn=10485760, NumelOut=10485760, Timeout(ms)=600000) ran for 600066 milliseconds before timing out."
    )
    found = judged(tmp_path, text)
    assert [(one.id, one.role) for one in found.findings] == [("hang.timeout", "symptom")]
    assert "SeqNum=45265" in (found.findings[0].observed or "")
    assert "flight-recorder" in found.missing[0]
    lost = judged(tmp_path, text, "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.")
    assert [(one.id, one.role) for one in lost.findings] == [("gpu.xid-79", "root"), ("hang.timeout", "cascade")]


@pytest.mark.parametrize(("line", "facts"), [
    ("0: 2025-06-17 16:24:55 I [train.py:103] Batch 1 Loss: 11.64398, Speed: 10.90 samples/sec, lr: 0.000100",
     {"last_loss": 11.64398, "median_samples_per_s": 10.9}),
    (" iteration      100/  500000 | consumed samples: 25600 | elapsed time per iteration (ms): 5321.4 | throughput per GPU "
     "(TFLOP/s/GPU): 401.2 | learning rate: 1.0E-04 | global batch size: 256 | lm loss: 7.652340E+00 | grad norm: 1.2",
     {"last_loss": 7.65234, "median_step_ms": 5321.4, "median_tflops_per_gpu": 401.2}),
    ("[titan] step: 10  loss:  8.1234  grad_norm:  1.2  memory: 45.1GiB(57.0%)  tps: 7,120  tflops: 412.34  mfu: 41.69%",
     {"last_loss": 8.1234, "median_tokens_per_s_per_gpu": 7120.0, "median_mfu_percent": 41.69}),
    ("{'loss': 1.2345, 'grad_norm': 0.5, 'learning_rate': 2e-05, 'epoch': 0.1}", {"last_loss": 1.2345}),
])  # fmt: skip
def test_training_logs(tmp_path: Path, line: str, facts: dict[str, Any]) -> None:
    found = judged(tmp_path, "INFO starting", line)
    assert found.files[0].kind == "training-log"
    assert not found.findings
    assert facts.items() <= found.files[0].facts.items()


@pytest.mark.parametrize(("wells", "says"), [(0, "from the first logged step"), (3, "at step 3, after 3 steps")])
def test_a_loss_that_is_no_number(tmp_path: Path, wells: int, says: str) -> None:
    lines = [f"step: {at}  loss:  8.{at}  mfu: 41.69%" for at in range(wells)]
    found = judged(
        tmp_path, *lines, f"step: {wells}  loss:  nan  mfu: 41.69%", f"step: {wells + 1}  loss:  nan  mfu: 41%"
    )
    assert ids(found) == ["numerics.bad-loss"]
    assert says in found.findings[0].claim
    assert found.findings[0].evidence[0].line == wells + 1


SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>535.54.03</driver_version>
<gpu id="00000000:01:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
<fb_memory_usage><total>81920 MiB</total></fb_memory_usage><temperature><gpu_temp>{temperature} C</gpu_temp></temperature>
<ecc_errors><volatile><dram_uncorrectable>{uncorrected}</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>{pending}</remapped_row_pending><remapped_row_failure>{failure}</remapped_row_failure></remapped_rows>
<clocks_event_reasons><clocks_event_reason_hw_thermal_slowdown>{hot}</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>
<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>{width}x</current_link_width></link_widths>
</pci_gpu_link_info></pci></gpu></nvidia_smi_log>"""
WELL = {"temperature": 40, "uncorrected": 0, "pending": "No", "failure": "No", "hot": "Not Active", "width": 16}


@pytest.mark.parametrize(("change", "expected"), [
    ({}, []),
    ({"uncorrected": "N/A", "pending": "N/A"}, []),
    ({"width": 8}, []),
    ({"uncorrected": 2}, ["gpu.uncorrected-errors"]),
    ({"pending": "Yes"}, ["gpu.row-remap-pending"]),
    ({"pending": "Yes", "failure": "Yes"}, ["gpu.row-remap-failed"]),
    ({"hot": "Active", "temperature": 91}, ["gpu.clocks-held-down"]),
])  # fmt: skip
def test_the_state_of_gpus(tmp_path: Path, change: dict[str, Any], expected: list[str]) -> None:
    path = tmp_path / "smi.xml"
    path.write_text(SMI.format(**{**WELL, **change}))
    found = diagnose(path)
    assert ids(found) == expected
    facts = found.files[0].facts
    assert (facts["gpus"], facts["driver_version"], facts["memory_total_mib"]) == (1, "535.54.03", [81920.0])


def test_metrics_are_facts(tmp_path: Path) -> None:
    """Shapes of DCGM's exporter and of vLLM."""
    found = judged(
        tmp_path, "# HELP DCGM_FI_DEV_FB_FREE Framebuffer memory free (in MiB).", "# TYPE DCGM_FI_DEV_FB_FREE gauge",
        'DCGM_FI_DEV_FB_FREE{gpu="0",modelName="Tesla T4"} 15109', 'DCGM_FI_DEV_FB_FREE{gpu="1",modelName="Tesla T4"} 9',
        "# TYPE vllm:num_preemptions_total counter", 'vllm:num_preemptions_total{model_name="a"} NaN', "up 1.0",
    )  # fmt: skip
    assert found.files[0].kind == "prometheus"
    assert found.files[0].facts["metrics"] == {"DCGM_FI_DEV_FB_FREE": 15118.0, "up": 1.0}
    assert not found.findings


@pytest.mark.parametrize(("last", "expected"), [("25 GB/s", []), ("<inactive>", ["gpu.links-down"])])
def test_links_of_gpus(tmp_path: Path, last: str, expected: list[str]) -> None:
    lines = [
        line
        for gpu in (0, 1)
        for line in (
            f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: GPU-5269b708-678a-b1a8-60f0-c9040653748{gpu})",
            *(f"         Link {link}: 25 GB/s" for link in range(11)),
            f"         Link 11: {last if gpu else '25 GB/s'}",
        )
    ]
    found = judged(tmp_path, *lines)
    assert found.files[0].kind == "nvidia-smi-nvlink"
    assert found.files[0].facts["gb_s_by_gpu"]["0"] == 300.0
    assert ids(found) == expected
    assert all(one.evidence[0].line == 26 for one in found.findings)


def test_a_topology_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(
        '<system version="1"><cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">'
        '<pci busid="1" class="0x030200" link_speed="16 GT/s" link_width="16"/>'
        '<pci busid="2" class="0x020700" link_speed="16 GT/s" link_width="16"/></pci></cpu></system>'
    )
    found = diagnose(path).files[0]
    assert (found.kind, found.facts["processors"], found.facts["gpus"], found.facts["network_cards"]) == (
        "nccl-topology",
        1,
        1,
        1,
    )


VIA = "host-1:166:207 [{gpu}] NCCL INFO Channel 0{gpu}/0 : {gpu}[{gpu}] -> 8[0] [send] via {way}"
IB = "host-1:166:207 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"


@pytest.mark.parametrize(("lines", "expected"), [
    ((IB, VIA.format(gpu=0, way="NET/IB/0/GDRDMA"), VIA.format(gpu=1, way="P2P/CUMEM")), []),
    ((IB, VIA.format(gpu=0, way="NET/IB/0"), VIA.format(gpu=1, way="NET/IB/1")), ["collectives.without-gpudirect"]),
    ((VIA.format(gpu=0, way="SHM/direct/direct"),), ["collectives.through-host-memory"]),
    ((IB, "host-1:166:207 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1."), ["collectives.forced"]),
    ((IB, "host-1:166:207 [0] NCCL INFO NCCL_ALGO set by environment to Ring"), []),
])  # fmt: skip
def test_ways_that_channels_go(tmp_path: Path, lines: tuple[str, ...], expected: list[str]) -> None:
    """Lines of src/transport/net.cc, p2p.cc and shm.cc of NCCL 2.18 to 2.28."""
    found = judged(tmp_path, *lines)
    assert found.files[0].kind == "nccl-log"
    assert ids(found) == expected


def test_a_value_that_is_not_in_force(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "INFO api_server.py: vLLM API server version 0.11.0\n"
        "INFO utils.py: non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 8192}\n"
        "INFO core.py: Initializing a V1 LLM engine (v0.11.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', "
        "max_seq_len=8192, tensor_parallel_size=1\nINFO: Application startup complete.\n"
    )
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len {}"
    found = diagnose(path, command.format(16384), "h100-sxm")
    told = next(one for one in found.findings if one.id == "configuration.not-in-force")
    assert (told.expected, told.observed) == ("16,384", "8,192")
    same = diagnose(path, command.format(8192), "h100-sxm")
    assert "configuration.not-in-force" not in {one.id for one in same.findings}
