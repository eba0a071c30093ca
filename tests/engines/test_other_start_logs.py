"""Start-up logs of SGLang, llama.cpp and TensorRT-LLM: figures, how the start ended, the command behind it.

Line shapes: sgl-project/sglang pull requests 4826 and 11716, issues 7691 and 8538; ollama/ollama issue 1800 (640 MiB of cache for
Llama-2-70B at 2,048 tokens) with llama.cpp's lines; triton-inference-server/tutorials pull request 150.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import trilemma as tl
from trilemma.ask.diagnosed import diagnose
from trilemma.diagnosis.start_log import start_in
from trilemma.engines import started_command
from trilemma.errors import InputError
from trilemma.quantities import GIB, MIB

SGLANG = """\
[2025-10-16 09:06:00] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B-Instruct', mem_fraction_static=0.85, tp_size=2, \
context_length=16384, kv_cache_dtype='auto', max_running_requests=None, disable_cuda_graph=False, port=30000)
[2025-10-16 09:06:10 TP0] Load weight begin. avail mem=78.61 GB
[2025-10-16 09:06:30 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.60 GB, mem usage=7.61 GB.
[2025-10-16 09:06:30 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=71.00 GB, mem usage=7.51 GB.
[2025-10-16 09:06:31 TP0] KV Cache is allocated. #tokens: 834615, K size: 27.06 GB, V size: 27.06 GB
"""
READY = "[2025-10-16 09:06:42] The server is fired up and ready to roll!\n"
CAPTURED = (
    "[2025-07-29 18:14:43 TP0] Capture cuda graph end. Time elapsed: 19.50 s. mem usage=6.19 GB. avail mem=5.24 GB.\n"
)
LLAMA_CPP = """\
build: 6123 (79c1160b) with cc (Ubuntu) for x86_64-linux-gnu
llama_model_loader: loaded meta data with 40 key-value pairs and 724 tensors from /models/Llama-2-70B-Q4_0.gguf (version \
GGUF V3 (latest))
load_tensors: offloaded 81/81 layers to GPU
load_tensors:        CUDA0 model buffer size = 18459.06 MiB
load_tensors:        CUDA1 model buffer size = 18459.06 MiB
load_tensors:   CPU_Mapped model buffer size =   140.62 MiB
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 2048
llama_kv_cache_unified:      CUDA0 KV buffer size =   320.00 MiB
llama_kv_cache_unified:      CUDA1 KV buffer size =   320.00 MiB
llama_kv_cache_unified: size =  640.00 MiB (  2048 cells,  80 layers,  1/ 1 seqs), K (f16):  320.00 MiB, V (f16):  320.00 MiB
llama_context:      CUDA0 compute buffer size =   324.00 MiB
"""
TENSORRT = """\
[TensorRT-LLM] TensorRT-LLM version: 1.0.0
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 15.02 GiB
[TRT-LLM] [I] Memory used after loading model weights (outside torch) in memory usage profiling: 1.25 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 78.30 GiB for max tokens in paged KV cache (3731744).
INFO:     Application startup complete.
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "start.log"
    path.write_text(text)
    return str(path)


def test_sglang(tmp_path: Path) -> None:
    engine, log = start_in(write(tmp_path, SGLANG + CAPTURED + READY))
    figures = {name: one.value for name, one in log.measured.items()}
    assert (engine, log.outcome, log.model) == ("sglang", "ok", "meta-llama/Llama-3.1-8B-Instruct")
    assert figures["weights_bytes"] == round(7.61 * GIB)  # the rank with most
    assert log.measured["weights_bytes"].rank == "TP1"
    assert figures["kv_cache_bytes"] == pytest.approx(54.12 * GIB, abs=2)  # K and V
    assert figures["kv_cache_tokens"] == 834_615
    assert figures["cuda_graph_bytes"] == round(6.19 * GIB)
    words = started_command(engine, log)
    assert words[:5] == ["python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B-Instruct"]
    assert dict(zip(words[5::2], words[6::2], strict=True)) == {
        "--tp-size": "2", "--context-length": "16384", "--mem-fraction-static": "0.85",
    } or "--tensor-parallel-size" in words  # fmt: skip


@pytest.mark.parametrize(("text", "stage", "refusal"), [
    (SGLANG.partition("[2025-10-16 09:06:31")[0]
     + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.2\n", "oom_profile",
     "no_kv_memory"),
    (SGLANG + "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB.\n", "oom_capture",
     "out_of_memory"),
    (SGLANG + READY + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "oom_runtime",
     "out_of_memory"),
    (LLAMA_CPP.partition("llama_context: n_seq")[0]
     + "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8000.00 MiB on device 0: cudaMalloc failed: out of memory\n",
     "oom_profile", "out_of_memory"),
])  # fmt: skip
def test_starts_that_fail(tmp_path: Path, text: str, stage: str, refusal: str) -> None:
    _, log = start_in(write(tmp_path, text))
    assert (log.outcome, log.refusal) == (stage, refusal)


def test_llama_cpp(tmp_path: Path) -> None:
    engine, log = start_in(write(tmp_path, LLAMA_CPP + "main: server is listening on http://127.0.0.1:8080\n"))
    figures = {name: one.value for name, one in log.measured.items()}
    assert (engine, log.version, log.outcome) == ("llama.cpp", "b6123", "ok")
    assert figures["kv_cache_total_bytes"] == 640 * MIB == 2 * 80 * 8 * 128 * 2 * 2048
    assert figures["kv_cache_bytes"] == 320 * MIB  # of one card
    assert figures["weights_bytes"] == round(18_459.06 * MIB)
    words = started_command(engine, log)
    assert words == ["llama-server", "-m", "/models/Llama-2-70B-Q4_0.gguf", "-c", "2048", "-np", "1", "-ngl", "81"]


def test_tensorrt_llm(tmp_path: Path) -> None:
    engine, log = start_in(write(tmp_path, TENSORRT))
    figures = {name: one.value for name, one in log.measured.items()}
    assert (engine, log.version, log.outcome) == ("tensorrt-llm", "1.0.0", "ok")
    assert figures["kv_cache_tokens"] == 3_731_744
    assert figures["kv_cache_bytes"] == round(78.30 * GIB)
    assert figures["non_torch_bytes"] == round(1.25 * GIB)
    with pytest.raises(InputError, match="names no model"):
        started_command(engine, log)


def test_check_takes_the_measured_lines_of_each(tmp_path: Path) -> None:
    answer = tl.check("", "h100-sxm:2", log=write(tmp_path, SGLANG + CAPTURED + READY))
    assert answer.verdict.measured
    assert answer.cache is not None
    assert answer.cache.tokens.value == pytest.approx(834_615, rel=0.07)
    graphs = next(one for one in answer.measured if one.name == "cuda_graph_bytes")
    assert graphs.diverges
    assert graphs.measured == round(6.19 * GIB)
    for log, command in (
        (LLAMA_CPP, "llama-server -m Llama-2-70B-Q4_0.gguf -c 2048 -ngl 99"),
        (TENSORRT, "trtllm-serve meta-llama/Llama-3.1-8B-Instruct"),
    ):
        beside = tl.check(command, "h200-sxm:2" if "llama-server" in command else "h200-sxm", log=write(tmp_path, log))
        weights = next(one for one in beside.measured if one.name == "weights_bytes")
        assert weights.measured == pytest.approx(weights.predicted, rel=0.05)


def test_the_kind_and_the_load_of_running_engines(tmp_path: Path) -> None:
    batch = (
        "[2025-10-16 09:07:42 TP0] Decode batch. #running-req: 32, #token: 65536, token usage: 0.15, cuda graph: False, "
        "gen throughput (token/s): 2900.50, #queue-req: 4,\n"
    )
    prefill = (
        "[2025-10-16 09:07:41 TP0] Prefill batch. #new-seq: 1, #new-token: 600, #cached-token: 400, token usage: 0.14\n"
    )
    found = diagnose(write(tmp_path, SGLANG + READY + prefill + batch + batch))
    facts = found.files[0].facts
    assert (found.files[0].kind, facts["engine"]) == ("engine-log", "sglang")
    assert (facts["running"], facts["waiting"], facts["generated_tokens_per_s"]) == (32, 4, 2900.5)
    assert (facts["cached_tokens"], facts["prefix_hit"], facts["without_graphs"]) == (65536, 0.4, True)
    timing = (
        "prompt eval time =     232.47 ms /   492 tokens (    0.47 ms per token,  2116.38 tokens per second)\n"
        "       eval time =    4000.00 ms /   100 tokens (   40.00 ms per token,    25.00 tokens per second)\n"
    )
    facts = diagnose(write(tmp_path, LLAMA_CPP + timing)).files[0].facts
    assert (facts["generated_tokens_per_s_of_a_request"], facts["prompt_tokens"]) == (25.0, 492)
