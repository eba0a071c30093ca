"""Kineto traces: where the time goes, by the conventions of the tables that AMD-AGI/TraceLens@171dd747 makes of the same."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma.ask.diagnosed import diagnose
from trilemma.diagnosis.kernels import kind_of, work_of

#: Kernels that communicate, as NCCL, RCCL, engines and libraries name them.
COMMUNICATION = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*)",
    "void vllm::cross_device_reduce_2stage<half, 4>(vllm::RankData*)",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<half>>",
    "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "void two_shot_all_reduce_kernel<float, 16>(float**, unsigned long)",
    "multimem_one_shot_all_reduce_kernel",
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8>",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4, __nv_bfloat16, 8>",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshot_allreduce_kernel<8, __nv_bfloat16>",
    "void aiter::allreduce_fusion_kernel_1stage<__hip_bfloat16, 8>",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    "void deep_ep::internode_ll::dispatch<true, true, 7168>(void*)",
    "nvshmemi_transfer_allgather_kernel",
    "void mscclpp::allreduce7<__half>",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
)
#: Kernels that do not, though their names come near.
COMPUTATION = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
    "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, __hip_bfloat16, 128, 128, 256, 3, false>",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
    "splitKreduce_kernel",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
    "void moe_sum_reduce_kernel<c10::BFloat16>",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
)


def gpu(
    start: float, length: float, name: str = "gemm_kernel", *, launch: int = 1, cat: str = "kernel"
) -> dict[str, Any]:
    arguments = {"device": 0, "stream": 7, "correlation": launch}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length, "args": arguments}


def launch(number: int = 1) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": 0,
        "dur": 5,
        "args": {"correlation": number},
    }


def trace(path: Path, *events: dict[str, Any], **top: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, **top, "traceEvents": list(events), "traceName": "x"})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def facts(path: Path) -> dict[str, Any]:
    return dict(diagnose(path).files[0].facts)


@pytest.mark.parametrize("name", COMMUNICATION)
def test_every_library_s_communication_is_recognised(name: str) -> None:
    assert work_of("kernel", name) == "communication"


@pytest.mark.parametrize("name", COMPUTATION)
def test_reductions_and_gathers_of_one_gpu_are_no_communication(name: str) -> None:
    assert work_of("kernel", name) == "compute"


@pytest.mark.parametrize(("name", "kind"), [
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64", "gemm"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "moe"),
    ("kernel_unified_attention_2d", "attention"),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256E", "normalisation"),
    ("triton_poi_fused_constant_pad_nd_moe_forward_0", "triton"),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "position"),
])  # fmt: skip
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert kind_of("kernel", name) == kind


def test_unions_overlap_and_exposure(tmp_path: Path) -> None:
    """Computing 0 to 100 and 50 to 120; communicating 110 to 160; copying 150 to 170 and 200 to 210: by hand."""
    found = facts(trace(
        tmp_path / "t.json.gz", launch(),
        gpu(1e12, 100), gpu(1e12 + 50, 70), gpu(1e12 + 110, 50, COMMUNICATION[0]),
        gpu(1e12 + 150, 20, "Memcpy DtoH", cat="gpu_memcpy"), gpu(1e12 + 200, 10, "Memcpy DtoH", cat="gpu_memcpy"),
    ))  # fmt: skip
    assert found["compute_ms"] == pytest.approx(0.120)
    assert found["communication_ms"] == pytest.approx(0.050)
    assert found["exposed_communication_ms"] == pytest.approx(0.040)
    assert found["exposed_copy_ms"] == pytest.approx(0.020)
    assert found["gpu_busy_ms"] == pytest.approx(0.180)
    assert found["gpu_idle_ms"] == pytest.approx(0.030)
    assert found["total_ms"] == pytest.approx(0.210)


def test_kernels_launched_before_the_profiler_do_not_count(tmp_path: Path) -> None:
    """As in h100-Qwen1.5-0.5B of the tables: 1198 of 1707 events are linked, 34.89 ms of 49.65 ms."""
    before = gpu(0, 500, launch=99)
    found = facts(trace(tmp_path / "t.json", before, launch(), gpu(1000, 100), gpu(1200, 100)))
    assert (found["gpu_events"], found["gpu_events_launched_before"]) == (2, 1)
    assert found["total_ms"] == pytest.approx(0.3)
    no_launches = facts(trace(tmp_path / "u.json", before, gpu(1000, 100)))
    assert no_launches["gpu_events"] == 2


def test_events_that_stand_before_their_launch_and_under_other_keys(tmp_path: Path) -> None:
    found = facts(trace(
        tmp_path / "t.json", gpu(5, 10), launch(), metadata={"deep": [[1, {"a": "]}"}]]},
        deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], distributedInfo={"rank": 3, "world_size": 8},
    ))  # fmt: skip
    assert (found["device"], found["rank"], found["world_size"]) == ("NVIDIA H100 80GB HBM3", 3, 8)
    assert found["compute_ms"] == pytest.approx(0.01)


def test_a_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([launch(), gpu(0, 10)]))
    assert facts(path)["gpu_busy_ms"] == pytest.approx(0.01)


def test_a_trace_that_breaks_off_says_so_and_gives_what_it_has(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json.gz", launch(), *(gpu(20 * at, 10, f"gemm_{at}") for at in range(20_000)))
    path.write_bytes(path.read_bytes()[:-2000])
    found = diagnose(path)
    assert found.files[0].kind == "kineto-trace"
    assert found.files[0].facts["incomplete"]
    assert 0 < found.files[0].facts["gpu_events"] < 20_000


def test_an_idle_gpu_alone_is_no_fault(tmp_path: Path) -> None:
    found = diagnose(trace(tmp_path / "t.json", launch(), gpu(0, 10), gpu(1000, 10)))
    assert [one.severity for one in found.findings] == ["context"]
    assert found.exit_code == 0


def test_the_rank_that_computes_longest_is_the_root(tmp_path: Path) -> None:
    for rank in range(4):
        longer = 300 if rank == 2 else 0
        trace(
            tmp_path / f"rank{rank}.json", launch(), gpu(0, 700 + longer),
            gpu(700 + longer, 310 - longer, COMMUNICATION[0]), distributedInfo={"rank": rank, "world_size": 4},
        )  # fmt: skip
    found = diagnose(tmp_path)
    root = next(one for one in found.findings if one.role == "root")
    assert root.id == "trace.slow-rank"
    assert "rank 2 computes 1.43 times" in root.claim
    assert root.confidence == "supported"
    assert root.expected == "700 µs on every rank".replace("700 µs", "0.7 ms")


@pytest.mark.slow
def test_a_second_a_mebibyte(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json", launch(), *(gpu(20 * at, 10, f"kernel_{at % 50}") for at in range(100_000)))
    size = path.stat().st_size / 2**20
    before = time.process_time()
    assert facts(path)["gpu_events"] == 100_000
    assert time.process_time() - before < size


def collective(start: float, duration: float, elements: int = 6_637_568) -> dict[str, Any]:
    told = {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 2,
        "dtype": "Float",
    }
    event = gpu(start, duration, COMMUNICATION[0])
    return {**event, "args": {**event["args"], **told}}


def test_bandwidth_of_a_collective_by_its_own_arguments(tmp_path: Path) -> None:
    """HolisticTraceAnalysis @f4d0062, nccl_data.json.gz: all-reduces of 26.55 MB over two ranks in 2,161 to 2,637 µs."""
    found = facts(trace(tmp_path / "t.json", launch(), collective(0, 2636.669), collective(5000, 2160.803)))
    (told,) = found["collectives"].values()
    assert list(found["collectives"]) == ["allreduce of 26550272 bytes over 2 ranks"]
    assert (told["calls"], told["shortest_us"]) == (2, 2160.803)
    assert told["busbw_gb_s"] == pytest.approx(26_550_272 / 2160.803 / 1e3, rel=1e-3)  # two ranks: bus is algorithm
    assert 10 < told["median_busbw_gb_s"] < told["busbw_gb_s"] < 12.5


def test_waiting_is_told_from_transfer(tmp_path: Path) -> None:
    """Two collectives of 100 µs each; rank 0 comes first to both and waits 400 µs in each."""
    for rank, wait in ((0, 400), (1, 0)):
        trace(tmp_path / f"rank{rank}.json", launch(), gpu(0, 500 - wait), gpu(500 - wait, 100 + wait, COMMUNICATION[0]),
              gpu(600, 500 - wait), gpu(1100 - wait, 100 + wait, COMMUNICATION[0]),
              distributedInfo={"rank": rank, "world_size": 2})  # fmt: skip
    skew = next(one for one in diagnose(tmp_path).findings if one.id == "trace.skew")
    assert "rank 0, 1 ms, 0.2 ms are transfer and 0.8 ms waiting" in skew.claim


def test_a_step_stands_beside_the_predicted_one(tmp_path: Path) -> None:
    answer = tl.fit("llama-3.1-8b", "h100-sxm:8", seq=8192, global_batch=8, recompute="full")
    assert answer.speed is not None
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 2_000_000}
    path = trace(
        tmp_path / "t.json", launch(), step, gpu(0, 600_000, "sm90_xmma_gemm_bf16"), gpu(600_000, 100_000, "flash_fwd_kernel"),
        gpu(700_000, 30_000, "multi_tensor_apply_kernel"), gpu(1_730_000, 270_000, COMMUNICATION[0]),
    )  # fmt: skip
    beside = next(one for one in diagnose(path, beside=answer).findings if one.id == "trace.step-beside-estimate")
    lines = answer.speed.lines
    products = sum(lines.get(name, 0.0) for name in ("linear", "experts", "logits", "recompute", "newton_schulz"))
    assert "a step takes 2,000 ms over 1 step" in beside.claim
    assert f"matrix products 600 ms ({products * 1e3:.4g})" in beside.claim
    assert "waiting 1,000 ms" in beside.claim
    assert "the longest beyond its prediction is waiting" in beside.claim
    assert beside.severity == "context"


def test_steps_of_serving_are_counted_by_attention(tmp_path: Path) -> None:
    """Two decode steps of 36 layers (Qwen3-8B)."""
    answer = tl.fit("qwen3-8b", "h100-sxm", isl=1024, osl=128, concurrency=32)
    kernels = [gpu(20 * at, 10, "flash_fwd_splitkv_kernel") for at in range(72)]
    path = trace(tmp_path / "t.json", launch(), *kernels, gpu(2000, 500, "sm90_gemm"))
    beside = next(one for one in diagnose(path, beside=answer).findings if one.id == "trace.step-beside-estimate")
    assert "over 2 steps" in beside.claim
    assert "attention 0.36 ms" in beside.claim
    assert "matrix products 0.25 ms" in beside.claim


def test_two_traces_side_by_side(tmp_path: Path) -> None:
    before = trace(tmp_path / "a.json", launch(), gpu(0, 1000, "sm90_gemm"), gpu(1000, 200, "flash_fwd_kernel"))
    after = trace(tmp_path / "b.json", launch(), gpu(0, 1500, "sm90_gemm"), gpu(1500, 150, "flash_fwd_kernel"))
    told = next(one for one in diagnose([before, after]).findings if one.id == "trace.difference")
    assert "gemm +0.5 ms, attention -0.05 ms" in told.claim
    assert told.observed == "+0.45 ms"
