"""Public bug reports as files rebuilt from their facts: what the thread established is the first finding.

Each case names its thread; figures are those stated there, lines are of the shapes that the tools print.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from trilemma.ask.diagnosed import Diagnosed, diagnose
from trilemma.diagnosis.findings import Finding
from trilemma.quantities import GIB, MIB


def judged(tmp_path: Path, *lines: str, command: str = "", gpu: str | None = None, **options: Any) -> Diagnosed:
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return diagnose(path, command, gpu, **options)


def first(found: Diagnosed) -> Finding:
    assert found.findings, found.missing
    return found.findings[0]


def test_fit_02_the_default_context_of_a_model_is_more_than_the_cache(tmp_path: Path) -> None:
    """vllm-project/vllm issue 6746: Llama-3.1-405B FP8 on eight H100 holds 79,392 tokens of 131,072."""
    root = first(judged(tmp_path, "INFO model weights take 50.0GiB; ", "ValueError: The model's max seq len (131072) is "
    "larger than the "
                        "maximum number of tokens that can be stored in KV cache (79392). Try increasing "
                        "`gpu_memory_utilization`."))  # fmt: skip
    assert (root.id, root.observed) == ("start-up.context", "79,392 tokens")
    assert "at most 79,392 tokens" in (root.fix or "")


def test_fit_05_blocks_times_their_size(tmp_path: Path) -> None:
    """vllm-project/vllm issue 2418: 229 blocks of 16 tokens are 3,664."""
    root = first(judged(tmp_path, "INFO 01-11 10:00:00 llm_engine.py:275] # GPU blocks: 229, # CPU blocks: 512",
                        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be "
                        "stored in "
                        "KV cache (3664)."))  # fmt: skip
    assert (root.id, root.observed) == ("start-up.context", f"{229 * 16:,} tokens")


def test_fit_06_the_sum_of_a_budget(tmp_path: Path) -> None:
    """vllm-project/vllm issue 11251: 15.77 · 0.90 − 7.51 − 0.39 − 2.53 = 3.76 GiB; graphs lie outside."""
    found = judged(
        tmp_path, "INFO total_gpu_memory (15.77GiB) x gpu_memory_utilization (0.90) = 14.20GiB",
        "INFO model weights take 7.51GiB; non_torch_memory takes 0.39GiB; PyTorch activation peak memory takes 2.53GiB; the "
        "rest of "
        "the memory reserved for KV Cache is 3.76GiB.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.77 GiB "
        "of which "
        "12.00 MiB is free. Including non-PyTorch memory, this process has 15.75 GiB memory in use. Of the allocated memory "
        "14.60 GiB "
        "is allocated by PyTorch, and 0.30 GiB is reserved by PyTorch but unallocated.",
    )  # fmt: skip
    root = first(found)
    assert root.id == "memory.out-of-memory"
    assert "= 15.77 GiB" in root.claim
    facts = found.files[0].facts
    sum_of_lines = facts["budget_bytes"] - facts["weights_bytes"] - facts["non_torch_bytes"] - facts["activation_bytes"]
    assert sum_of_lines == pytest.approx(facts["kv_cache_bytes"], abs=0.02 * GIB)


def test_fit_08_an_estimate_of_graphs_that_cannot_be(tmp_path: Path) -> None:
    """vllm-project/vllm issue 53013: 118.65 GiB on GB300; others measure 0.46 to 6.3."""
    root = first(judged(tmp_path, "INFO [gpu_model_runner.py:5000] Estimated CUDA graph memory: 118.65 GiB total"))
    assert (root.id, root.observed) == ("start-up.graph-estimate", "118.65 GiB")
    assert "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0" in (root.fix or "")
    assert judged(tmp_path, "INFO Estimated CUDA graph memory: 6.30 GiB total").healthy


def test_fit_11_graphs_take_more_than_was_left_for_them(tmp_path: Path) -> None:
    """sgl-project/sglang pull request 5893: 6.22 GB for 256 sequences on H200, 5.61 left, and servers run out of memory."""
    out = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 139.81 "
    "GiB of which "
           "5.00 GiB is free. Including non-PyTorch memory, this process has 134.80 GiB memory in use. Of the allocated "
           "memory 131.00 "
           "GiB is allocated by PyTorch, and 0.80 GiB is reserved by PyTorch but unallocated.")  # fmt: skip
    found = judged(
        tmp_path, "[2025-04-29 10:00:00 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=124.0 GB, mem "
        "usage=15.01 GB.",
        "[2025-04-29 10:00:10 TP0] Capture cuda graph end. Time elapsed: 19.50 s. mem usage=6.22 GB. avail mem=5.61 GB.",
        "[2025-04-29 10:00:12] The server is fired up and ready to roll!", out,
        command="python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --mem-fraction-static 0.9",
        gpu="h200-sxm",
    )  # fmt: skip
    assert first(found).id == "memory.out-of-memory"
    graphs = next(one for one in found.findings if one.id == "memory.cuda-graph-beside-estimate")
    assert graphs.observed == "6.22 GiB"
    assert "lower share of memory" in (graphs.fix or "")


def test_fit_15_the_cache_of_a_70b(tmp_path: Path) -> None:
    """ollama/ollama issue 1800: 640 MiB at 2,048 tokens, 2 · 80 · 8 · 128 · 2 B a token; the rest is scratch."""
    found = judged(tmp_path, "llama_kv_cache_init:      CUDA0 KV buffer size =   640.00 MiB",
                   "llama_new_context_with_model: n_ctx      = 2048",
                   "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8000.00 MiB on device 0: cudaMalloc failed: out "
                   "of memory")  # fmt: skip
    root = first(found)
    assert root.id == "start-up.out-of-memory"
    assert found.files[0].facts["kv_cache_bytes"] == 2 * 80 * 8 * 128 * 2 * 2048


def snapshot(tmp_path: Path, segments: list[dict[str, Any]], trace: list[dict[str, Any]]) -> Diagnosed:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(
        pickle.dumps({"segments": segments, "device_traces": [trace], "allocator_settings": {}}, protocol=4)
    )
    return diagnose(path)


def segment(stream: int, **states: int) -> dict[str, Any]:
    blocks = [{"state": name, "size": size, "frames": []} for name, size in states.items()]
    return {
        "total_size": sum(states.values()), "allocated_size": states.get("active_allocated", 0), "stream": stream,
        "blocks": blocks, "active_size": 0, "requested_size": 0, "is_expandable": False,
    }  # fmt: skip


def test_mem_04_freed_blocks_that_wait_for_a_collective(tmp_path: Path) -> None:
    """pytorch/torchtitan issue 735: 10 GB more with FSDP2 and tensor parallel, cured by TORCH_NCCL_AVOID_RECORD_STREAMS=1."""
    root = first(snapshot(tmp_path, [segment(0, active_allocated=50 * GIB, active_awaiting_free=10 * GIB)], []))
    assert (root.id, root.observed) == ("memory.awaiting-free", "10.00 GiB")
    assert "TORCH_NCCL_AVOID_RECORD_STREAMS=1" in (root.fix or "")


def test_mem_07_cached_blocks_of_a_stream_that_is_not_used_again(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM pull request 6885: 242,670 MiB reserved, 203,504 allocated; 20,964 on a one-shot stream."""
    used = segment(0, active_allocated=203_504 * MIB, inactive=18_202 * MIB)
    root = first(
        snapshot(tmp_path, [used, segment(7, inactive=20_964 * MIB)], [{"action": "alloc", "stream": 0, "size": 1}])
    )
    assert root.id == "memory.stream-bound-cache"
    assert root.observed == f"{20_964 / 1024:.2f} GiB"
    assert "current stream" in (root.fix or "")


def test_mem_08_reserved_beyond_allocated(tmp_path: Path) -> None:
    """meta-llama/llama-cookbook issue 120: 42 GB allocated, 63 reserved; expandable segments were suggested."""
    root = first(judged(tmp_path, "Max CUDA memory allocated was 42 GB", "Max CUDA memory reserved was 63 GB",
                        "Peak active CUDA memory was 59 GB", "CUDA Malloc retries : 0"))  # fmt: skip
    assert root.id == "memory.reserved-overhang"
    assert "21.0 GiB" in root.claim
    assert "expandable_segments" in (root.fix or "")


def test_mem_12_a_checkpoint_staged_on_the_host(tmp_path: Path) -> None:
    """radixark/Megatron-LM pull request 61: the first synchronous checkpoint of 744B on 16 nodes, 651 GB a node."""
    found = judged(
        tmp_path, " iteration 100 | elapsed time per iteration (ms): 9000.0 | lm loss: 7.6",
        "saving checkpoint at iteration 100 to /ckpt",
        "[ 9000.1] Out of memory: Killed process 4242 (python) total-vm:900000000kB, anon-rss:780000000kB",
    )  # fmt: skip
    root = first(found)
    assert root.id == "host.checkpoint-staging"
    assert {one.line for one in root.evidence} == {2, 3}


TRAIN = (
    "torchrun --nnodes {nodes} --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 8192 --max-position-embeddings 8192 --micro-batch-size {micro} --global-batch-size {batch} --bf16 --swiglu "
    "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --vocab-size 201088 "
    "--untie-embeddings-and-output-weights --use-distributed-optimizer"
)


def test_mem_15_logits_of_whole_sequences(tmp_path: Path) -> None:
    """NVIDIA-NeMo/Automodel issue 3907: 184.31 GiB, 171.63 allocated; every loss that is not fused holds B · S · V logits. The
    vocabulary of gpt-oss, four sequences of 8,192 in FP32."""
    request = 4 * 8192 * 201_088 * 4 / GIB
    found = judged(
        tmp_path, f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request:.2f} GiB. GPU 0 has a total "
        "capacity of "
        "184.31 GiB of which 10.00 GiB is free. Including non-PyTorch memory, this process has 174.31 GiB memory in use. Of the "
        "allocated memory 171.63 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated.",
        command=TRAIN.format(nodes=1, micro=4, batch=128), gpu="b200:8",
    )  # fmt: skip
    root = first(found)
    assert root.id == "memory.out-of-memory"
    assert "4 sequences of 8,192 tokens by 201,088 logits of 4 bytes: a fused or chunked loss" in root.claim
    assert "logits" in (root.expected or "")


def test_thr_01_a_peak_that_assumes_sparsity(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM issue 1276: 400 TFLOP/s are 40 % of the dense 989, not 20 % of 1,979."""
    root = first(judged(
        tmp_path, "[titan] CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "[titan] Peak FLOPS used for computing MFU: 1.979e+15",
        "[titan] step: 10  loss:  8.1234  grad_norm:  1.2  tps: 7,120  tflops: 400.00  mfu: 20.21%",
    ))  # fmt: skip
    assert root.id == "speed.sparse-peak"
    assert root.predicted_effect == "MFU 20.2 % is 40.4 %"
    dense = judged(
        tmp_path, "[titan] CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "[titan] Peak FLOPS used for computing MFU: 9.890e+14", "[titan] step: 10  loss:  8.1234  tflops: 400.00  mfu: 40.4%",
    )  # fmt: skip
    assert dense.healthy


def test_thr_04_parameters_in_fp32(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM issue 1000: 20 TFLOP/s on A100 and "using torch.float32 for parameters" in the log."""
    root = first(judged(
        tmp_path, "using world size: 16, data-parallel size: 1, tensor-model-parallel size: 8", "using torch.float32 for "
        "parameters ...",
        " iteration 10 | elapsed time per iteration (ms): 60000.0 | throughput per GPU (TFLOP/s/GPU): 20.0 | lm loss: 7.6",
    ))  # fmt: skip
    assert root.id == "speed.parameters-in-fp32"
    assert "--bf16" in (root.fix or "")
    assert judged(tmp_path, "using torch.bfloat16 for parameters ...").healthy


def test_thr_10_weights_gathered_for_every_micro_batch(tmp_path: Path) -> None:
    """marin-community/marin issue 6304: two micro-batches under FSDP, MFU 9.37 → 7.18 % in a run bound by communication."""
    command = (
        "torchrun --nnodes 8 --nproc_per_node 8 ./train.py --train_batch_size=1 --max_context_width=4096 --hidden_width=8192 "
        "--intermediate_size=28672 --num_layers=80 --num_heads=64 --num_key_value_heads=8 --model_type=llama_v3"
    )
    line = "0: I [train.py:103] Batch 1 Loss: 11.6, Speed: 3.00 samples/sec, lr: 0.000100"
    found = judged(tmp_path, line, line, command=command, gpu="a100-sxm4-80gb:64", network="100Gb/s")
    assert any(
        one.id in ("speed.network-bound", "speed.sharded-across-nodes") for one in found.findings if one.role == "root"
    )


def test_thr_11_garbage_collection_stops_a_rank(tmp_path: Path) -> None:
    """karpathy/nanochat pull request 477: 683 ms, now and then 1,350, MFU 48 → 24; a rank collects for 713.5 ms."""
    step = "step {at:05d}/21400 | loss: 6.5{at} | dt: {dt:.2f}ms | tok/sec: 767,000 | mfu: 47.98 |"
    lines = [step.format(at=at, dt=1350.0 if at in (6, 12) else 683.0) for at in range(16)]
    lines.insert(7, "[GC rank3] gen2: 713.5ms collected 340341 objects")
    root = first(judged(tmp_path, *lines))
    assert root.id == "training.pauses"
    assert (root.expected, root.observed) == ("683 ms", "1,350 ms")
    assert "garbage collection" in root.claim


def test_thr_13_one_card_at_a_time(tmp_path: Path) -> None:
    """huggingface/transformers issue 33656: device_map="auto" on four A100, each busy a quarter of the time."""
    head = "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk"
    rows = [f"    {gpu}    120     40      -    {sm}     20      0      0   1593   1410" for _ in range(4)
            for gpu, sm in enumerate((25, 24, 26, 25))]  # fmt: skip
    root = first(judged(tmp_path, head, *rows))
    assert root.id == "speed.one-gpu-at-a-time"
    assert "tensor parallelism" in (root.fix or "")


def test_thr_14_a_loader_that_starves_the_card(tmp_path: Path) -> None:
    """open-edge-platform/geti pull request 5958: 0.217 s of every third of a second wait for data."""
    line = "Epoch 0:  10%|#  | 10/100 [00:03<00:30,  3.00it/s, train_loss=1.1, step=1, data_time=0.217]"
    root = first(judged(tmp_path, line, line, line))
    assert root.id == "training.data-bound"
    assert root.observed == f"{0.217 * 3:.1%}"
    assert "loader workers" in (root.fix or "")


GPT_13B = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 50304 "
    "--use-distributed-optimizer --tensor-model-parallel-size 2"
)
FP8 = " --transformer-impl transformer_engine --fp8-format hybrid"


def test_thr_05_fp8_is_not_twice_as_fast(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM issue 396: 0.34 became 0.24 s a step for 13B on eight H100: products double, the rest stays."""
    step = " iteration {0} | elapsed time per iteration (ms): {1} | lm loss: 7.6"
    logs = {"bf16.log": (GPT_13B, 340.0), "fp8.log": (GPT_13B + FP8, 240.0)}
    for name, (command, took) in logs.items():
        lines = [f"+ {command}", *(step.format(at, took) for at in range(10))]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    found = diagnose([tmp_path / name for name in logs], gpu="h100-sxm:8")
    told = next(one for one in found.findings if one.id == "speed.low-precision-gain")
    assert told.observed == "1.42 times as fast"
    assert (told.role, told.severity) == ("context", "context")
    assert "the rest stays" in told.claim
    one = next(
        one for one in judged(tmp_path, *(step.format(at, 240.0) for at in range(10)), command=GPT_13B + FP8, gpu="h100-sxm:8")
        .findings if one.id == "speed.low-precision-gain"
    )  # fmt: skip
    assert "and not twice" in one.claim


def trace(tmp_path: Path, *kernels: tuple[str, float]) -> Diagnosed:
    events = [{"ph": "X", "cat": "kernel", "name": name, "ts": 100.0 * at, "dur": took, "pid": 0, "tid": 7,
               "args": {"device": 0, "stream": 7, "correlation": at}} for at, (name, took) in enumerate(kernels)]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return diagnose(path)


def test_thr_06_casts_of_a_small_product(tmp_path: Path) -> None:
    """NVIDIA/TransformerEngine issue 445: a linear layer of 1024 x 1024 is eleven times slower in FP8: casts decide."""
    cast = "void transformer_engine::cast_transpose_kernel<8, 16, float, __nv_bfloat16, __nv_fp8_e4m3>(x)"
    product = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128"
    root = first(trace(tmp_path, (cast, 6.0), (cast, 6.0), (product, 4.0), (cast, 5.0)))
    assert root.id == "speed.casts-above-products"
    assert "does not pay for these shapes" in root.claim
    assert trace(tmp_path, (cast, 6.0), (product, 400.0)).healthy


def test_thr_08_experts_too_narrow_for_mxfp8(tmp_path: Path) -> None:
    """pytorch/torchtitan issue 2086: 17.71 ms with MXFP8 against 16.88 in BF16 for experts of 1,408: quantising dominates."""
    quantise = "void to_mx_kernel_dim0_dim1<c10::BFloat16, c10::Float8_e4m3fn>(x)"
    root = first(trace(tmp_path, (quantise, 9300.0), ("cutlass3x_sm100_grouped_mm_mxf8", 8410.0)))
    assert root.id == "speed.casts-above-products"
    assert "fused" in (root.fix or "")


MIXTRAL = (
    "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 256 --bf16 --swiglu "
    "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --vocab-size 32000 --num-experts 8 "
    "--moe-router-topk 2 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --use-distributed-optimizer"
)


def test_thr_03_experts_one_after_the_other(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM issue 756: Mixtral 8x7B on 16 H100 at 130 TFLOP/s; grouped products, alltoall, EP 8 give 230."""
    line = " iteration {0} | elapsed time per iteration (ms): 40000.0 | throughput per GPU (TFLOP/s/GPU): 130.0 | lm loss: 7.6"
    found = judged(tmp_path, *(line.format(at) for at in range(10)), command=MIXTRAL, gpu="h100-sxm:16")
    root = first(found)
    assert (root.id, root.observed) == ("speed.experts-one-by-one", "130 TFLOP/s a GPU")
    assert "230" in (root.predicted_effect or "")
    few = MIXTRAL.replace(
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4", "--tensor-model-parallel-size 2"
    )
    well = few + " --moe-grouped-gemm --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall"
    found = judged(tmp_path, *(line.format(at) for at in range(10)), command=well, gpu="h100-sxm:16")
    assert not [one.id for one in found.findings if one.id.startswith(("speed.experts", "speed.tokens"))]


def test_moe_01_experts_unevenly_loaded(tmp_path: Path) -> None:
    """ROCm/ATOM pull request 1210: rebalancing gives 16.7 %; the mean over the greatest load bounds it."""
    line = "INFO EPLB step: 100 for model x: avg_tokens=857.00, max_tokens=1000, balancedness={0}"
    root = first(judged(tmp_path, line.format("0.8570"), line.format("0.8571")))
    assert root.id == "speed.expert-imbalance"
    assert root.predicted_effect == "the time of experts falls by up to 1.17 times"
    assert judged(tmp_path, line.format("0.9500")).healthy


def test_fit_12_a_cache_that_tensor_parallelism_cannot_split(tmp_path: Path) -> None:
    """vllm-project/vllm issue 51454: one latent head on eight B200; replicas of attention hold 7.7 times as many requests."""
    command = (
        "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8 --enable-expert-parallel --max-model-len 131072"
    )
    start = "INFO [gpu_worker.py:298] Available KV cache memory: 80.00 GiB"
    found = judged(tmp_path, start, "INFO [kv_cache_utils.py:1091] GPU KV cache size: 2,410,816 tokens", command=command,
                   gpu="b200:8")  # fmt: skip
    root = next(one for one in found.findings if one.role == "root")
    assert root.id == "serving.copied-cache"
    assert 5.0 < float((root.predicted_effect or "0").split()[0]) < 8.0


def test_num_07_experts_that_are_not_padded(tmp_path: Path) -> None:
    """flashinfer-ai/flashinfer issue 2569: MXFP4 experts, tensor parallel 2, driver 570 on B200: NaN now and then."""
    machine = tmp_path / "smi.csv"
    log = tmp_path / "run.log"
    log.write_text("INFO [gpu_worker.py:298] Available KV cache memory: 80.00 GiB\n")
    for driver, tp, told in (("570.86.15", 2, True), ("580.65.06", 2, False), ("570.86.15", 1, False)):
        machine.write_text(f"name, driver_version, memory.total [MiB]\nNVIDIA B200, {driver}, 183359 MiB\n")
        command = f"vllm serve openai/gpt-oss-120b --tensor-parallel-size {tp}"
        found = diagnose([log, machine], command, f"b200:{tp}")
        assert ("version.experts-not-padded" in {one.id for one in found.findings}) is told, (driver, tp)


def test_mem_02_what_does_not_shrink_with_more_gpus(tmp_path: Path) -> None:
    """deepspeedai/DeepSpeed issue 4093: GPT-J-6B with ZeRO-3 takes 13 GB on two GPUs and on four, the state alone 0.77."""
    config = tmp_path / "ds.json"
    config.write_text(
        '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}, '
        '"fp16": {"enabled": true}, "train_micro_batch_size_per_gpu": 4}'
    )
    command = (
        "deepspeed --num_gpus 2 train.py --model_name_or_path EleutherAI/gpt-j-6b --per_device_train_batch_size 4 --fp16 "
        f"--max_seq_length 2048 --deepspeed {config}"
    )
    found = judged(
        tmp_path,
        "{'loss': 2.31}",
        "epoch=0/micro_step=8/global_step=8, RunningAvgSamplesPerSec=3.1, "
        "CurrSamplesPerSec=3.1, MemAllocated=0.8GB, MaxMemAllocated=13.0GB",
        command=command,
        gpu="a100-sxm4-40gb:2",
    )
    told = next(one for one in found.findings if one.id == "training.memory-beside-estimate")
    assert "do not shrink with more GPUs" in told.claim


def test_net_01_tcp_in_place_of_rdma(tmp_path: Path) -> None:
    """areal-project/AReaL issue 639: NET/Socket, 5 of 25 GB/s."""
    root = first(judged(tmp_path, "host:1:2 [0] NCCL INFO NET/Socket : Using [0]bond0:10.0.0.1<0>"))
    assert root.id == "collectives.over-tcp"


def nccl_tests(busbw: float, nodes: int = 2, gpus: int = 8) -> list[str]:
    ranks = [f"#  Rank {rank:2d} Group  0 Pid  100 on host{rank // gpus} device {rank % gpus} [0x01] NVIDIA A100-SXM4-80GB"
             for rank in range(nodes * gpus)]  # fmt: skip
    algbw = busbw / (2 * (nodes * gpus - 1) / (nodes * gpus))
    row = f"  1073741824     268435456     float     sum      -1   {1073741824 / algbw / 1e3:.1f}  {algbw:.2f}  {busbw:.2f}  0"
    return [*ranks, "#  size  count  type  redop  root  time  algbw  busbw #wrong", row]


def test_net_02_trees_of_two_nodes_are_no_fault(tmp_path: Path) -> None:
    """NVIDIA/nccl issue 307: 36 GB/s over four cards of 100 Gb/s; two nodes show up to twice the network."""
    found = judged(tmp_path, *nccl_tests(36.0), network="4x100Gb/s", gpu="a100-sxm4-80gb")
    assert "collectives.slow" not in {one.id for one in found.findings}
    slow = judged(tmp_path, *nccl_tests(9.0), network="4x100Gb/s", gpu="a100-sxm4-80gb")
    assert first(slow).id == "collectives.slow"


def deepspeed(tmp_path: Path) -> str:
    config = tmp_path / "ds.json"
    config.write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}'
    )
    return (
        "deepspeed --num_nodes 4 --num_gpus 8 train.py --model_name_or_path Qwen/Qwen2.5-72B --per_device_train_batch_size 1 "
        f"--bf16 --gradient_checkpointing --max_seq_length 4096 --deepspeed {config}"
    )


STEP = "{'loss': 2.31, 'grad_norm': 1.1, 'learning_rate': 1e-5, 'epoch': 0.01}"
RATE = " 10%|#         | 10/100 [10:00<1:30:00, 60.00s/it]"


def test_net_06_weights_sharded_over_slow_nodes(tmp_path: Path) -> None:
    """deepspeedai/DeepSpeed issues 6889 and 7019: 72B with ZeRO-3 over nodes of A100; sharding inside a node was the answer."""
    found = judged(tmp_path, STEP, RATE, STEP, command=deepspeed(tmp_path), gpu="a100-sxm4-80gb:32", network="100Gb/s")
    roots = [one for one in found.findings if one.role == "root"]
    assert roots[0].id in ("speed.network-bound", "speed.sharded-across-nodes")
    assert "inside a node" in (roots[0].fix or "")


def test_net_07_how_wide_a_network_zero_3_needs(tmp_path: Path) -> None:
    """deepspeedai/DeepSpeed issue 2928: 100 Gb/s are not enough, 200 to 400 do."""
    narrow = judged(tmp_path, STEP, RATE, STEP, command=deepspeed(tmp_path), gpu="a100-sxm4-80gb:32", network="100Gb/s")
    told = next(one for one in narrow.findings if one.id == "speed.network-bound")
    assert "100 Gb/s a node" in told.claim
    assert "400 Gb/s a node" in (told.predicted_effect or "")
    inside = deepspeed(tmp_path).replace("--num_nodes 4", "--num_nodes 1").replace("Qwen2.5-72B", "Qwen2.5-7B")
    wide = judged(tmp_path, STEP, RATE, STEP, command=inside, gpu="a100-sxm4-80gb:8")
    assert "speed.network-bound" not in {one.id for one in wide.findings}


def test_num_03_no_number_from_the_first_step(tmp_path: Path) -> None:
    """pytorch/ao issue 3356: dynamic FP8 of activations, NaN at once; a lower bound of the scale cures it (zero rows)."""
    root = first(judged(tmp_path, "{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.01}"))
    assert root.id == "numerics.bad-loss"
    assert "zero rows under a scale" in (root.fix or "")
