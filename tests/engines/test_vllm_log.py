"""Start-up logs. Line shapes are vLLM's own; the figures are those of the public threads named beside each sample."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from trilemma.diagnosis.start_log import start_in
from trilemma.engines.start_log import StartUpLog
from trilemma.engines.vllm.log import LogReader
from trilemma.errors import InputError
from trilemma.quantities import GIB, MIB


def log(tmp_path: Path, text: str) -> StartUpLog:
    reader = LogReader()
    for number, line in enumerate(text.splitlines(), start=1):
        reader.take(line, number)
    return reader.result(str(tmp_path / "serve.log"))


def read_log(path: Path) -> StartUpLog:
    return start_in(str(path), "vllm")[1]


def values(found: StartUpLog) -> dict[str, float]:
    return {name: one.value for name, one in found.measured.items()}


def gib(number: float) -> float:
    return float(round(number * GIB))


# vllm-project/vllm pull request 14447: 16 cards of 24 GB, moe_wna16.
FIRST_ENGINE = """\
(VllmWorkerProcess pid=507) INFO 04-12 08:21:19 [worker.py:267] Memory profiling takes 17.59 seconds
(VllmWorkerProcess pid=507) INFO 04-12 08:21:19 [worker.py:267] the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.99) = 23.35GiB
(VllmWorkerProcess pid=507) INFO 04-12 08:21:19 [worker.py:267] model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; the rest of the memory reserved for KV Cache is 1.57GiB.
(VllmWorkerProcess pid=577) INFO 04-12 08:21:19 [worker.py:267] model weights take 21.11GiB; non_torch_memory takes 0.21GiB; PyTorch activation peak memory takes 0.37GiB; the rest of the memory reserved for KV Cache is 1.67GiB.
"""  # noqa: E501


def test_first_engine_takes_the_tightest_rank(tmp_path: Path) -> None:
    found = log(tmp_path, FIRST_ENGINE)
    assert values(found) == {
        "capacity_bytes": gib(23.58),
        "memory_fraction": 0.99,
        "budget_bytes": gib(23.35),
        "weights_bytes": gib(21.21),
        "non_torch_bytes": gib(0.21),
        "activation_bytes": gib(0.37),
        "kv_cache_bytes": gib(1.57),
    }
    assert found.outcome is None
    weights = [line for line in found.lines if line.name == "weights_bytes"]
    assert [(line.line_number, line.rank) for line in weights] == [
        (3, "VllmWorkerProcess pid=507"),
        (4, "VllmWorkerProcess pid=577"),
    ]


# generative-computing/mellea pull request 416 (H100, first engine, 0.8).
STARTED = """\
INFO 02-11 10:17:54 [executor_base.py:113] # cuda blocks: 36184, # CPU blocks: 2340
INFO 02-11 10:17:54 [executor_base.py:118] Maximum concurrency for 8192 tokens per request: 70.67x
INFO 02-11 10:17:59 [model_runner.py:1671] Graph capturing finished in 2 secs, took 0.13 GiB
INFO 02-11 10:17:59 [llm_engine.py:428] init engine (profile, create kv cache, warmup model) took 5.13 seconds
"""


def test_a_start_that_succeeds(tmp_path: Path) -> None:
    found = log(tmp_path, STARTED)
    assert found.outcome == "ok"
    assert values(found) == {
        "gpu_blocks": 36184,
        "context_tokens": 8192,
        "max_concurrency": 70.67,
        "capture_s": 2,
        "cuda_graph_bytes": gib(0.13),
    }


# vllm-project/vllm pull request 10511 (the table of 0.6.5) and issue 11550 (0.6.6).
def test_older_spellings(tmp_path: Path) -> None:
    table = (
        "INFO 12-13 19:54:18 worker.py:243] total_gpu_memory     79.22GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] the current vLLM instance can use    71.29GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] model weights take   14.96GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] non_torch_memory     1.79GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] PyTorch activation peak memory       1.26GiB\n"
        "INFO 12-13 19:54:18 worker.py:243] available_kv_cache_memory    53.29GiB\n"
        "INFO 01-14 12:36:51 model_runner.py:1099] Loading model weights took 7.9692 GB\n"
    )
    assert values(log(tmp_path, table)) == {
        "capacity_bytes": gib(79.22),
        "budget_bytes": gib(71.29),
        "weights_bytes": gib(14.96),
        "non_torch_bytes": gib(1.79),
        "activation_bytes": gib(1.26),
        "kv_cache_bytes": gib(53.29),
    }


# The H100 campaign of llm-d-planner pull request 205: CodeLlama 7B, vLLM 0.19.0, utilisation 0.95.
SECOND_ENGINE = """\
(APIServer pid=7) INFO 04-22 10:00:00 [utils.py:233] non-default args: {'model_tag': 'codellama/CodeLlama-7b-hf', 'max_model_len': 8192, 'gpu_memory_utilization': 0.95, 'compilation_config': CompilationConfig(level=3)}
(EngineCore_DP0 pid=91) INFO 04-22 10:00:09 [core.py:106] Initializing a V1 LLM engine (v0.19.0) with config: model='codellama/CodeLlama-7b-hf', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto
(EngineCore_DP0 pid=91) INFO 04-22 10:00:30 [gpu_model_runner.py:4821] Model loading took 12.56 GiB memory and 3.204153 seconds
(EngineCore_DP0 pid=91) DEBUG 04-22 10:00:41 [gpu_worker.py:425] Initial free memory: 78.68 GiB; Requested memory: 0.950000 (util), 75.23 GiB
(EngineCore_DP0 pid=91) DEBUG 04-22 10:00:41 [gpu_worker.py:435] Memory profiling takes 4.12 seconds. Total non KV cache memory: 13.57GiB; torch peak memory increase: 0.77GiB; non-torch forward increase memory: 0.25GiB; weights memory: 12.56GiB.
(EngineCore_DP0 pid=91) INFO 04-22 10:00:41 [gpu_worker.py:437] \x1b[32mAvailable KV cache memory: 61.66 GiB\x1b[0m
(EngineCore_DP0 pid=91) INFO 04-22 10:00:41 [kv_cache_utils.py:1319] GPU KV cache size: 126,256 tokens
(EngineCore_DP0 pid=91) INFO 04-22 10:00:41 [kv_cache_utils.py:1324] Maximum concurrency for 8,192 tokens per request: 15.41x
(EngineCore_DP0 pid=91) INFO 04-22 10:00:52 [gpu_worker.py:598] CUDA graph pool memory: 0.89 GiB (actual), 0.84 GiB (estimated), difference: 0.05 GiB (5.6%).
(APIServer pid=7) INFO:     Application startup complete.
"""  # noqa: E501


def test_second_engine_with_debug_lines(tmp_path: Path) -> None:
    found = log(tmp_path, SECOND_ENGINE)
    assert (found.version, found.model, found.outcome) == ("0.19.0", "codellama/CodeLlama-7b-hf", "ok")
    assert found.arguments == {
        "model_tag": "codellama/CodeLlama-7b-hf", "max_model_len": 8192, "gpu_memory_utilization": 0.95,
    }  # fmt: skip
    assert found.config["max_seq_len"] == "8192"
    assert values(found) == {
        "weights_bytes": gib(12.56),
        "load_s": 3.204153,
        "free_bytes": gib(78.68),
        "memory_fraction": 0.95,
        "budget_bytes": gib(75.23),
        "non_kv_bytes": gib(13.57),
        "activation_bytes": gib(0.77),
        "non_torch_bytes": gib(0.25),
        "kv_cache_bytes": gib(61.66),
        "kv_cache_tokens": 126_256,
        "context_tokens": 8192,
        "max_concurrency": 15.41,
        "cuda_graph_bytes": gib(0.89),
        "cuda_graph_estimate_bytes": gib(0.84),
    }
    assert found.measured["kv_cache_tokens"].line_number == 7
    assert "\x1b" not in found.measured["kv_cache_bytes"].text


def test_one_line_holds_tokens_and_concurrency_since_0_33(tmp_path: Path) -> None:
    line = (
        "INFO 11-01 [x] GPU KV cache size: 205,728 tokens, Maximum concurrency for 40,000 tokens per request: 5.14x\n"
    )
    assert values(log(tmp_path, line)) == {
        "kv_cache_tokens": 205_728,
        "context_tokens": 40_000,
        "max_concurrency": 5.14,
    }


def test_report_of_free_memory_after_start(tmp_path: Path) -> None:
    line = (
        "Free memory on device (78.68/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). "
        "Actual usage is 14.99 GiB for weight, 1.2 GiB for peak activation, 0.1 GiB for non-torch memory, and 0.5 GiB for "
        "CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1`"
    )
    assert values(log(tmp_path, line)) == {
        "free_bytes": gib(78.68), "capacity_bytes": gib(79.19), "memory_fraction": 0.9, "budget_bytes": gib(71.27),
        "weights_bytes": gib(14.99), "peak_with_graphs_bytes": gib(1.2), "non_torch_bytes": gib(0.1),
        "cuda_graph_bytes": gib(0.5),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "outcome", "refusal", "measured"),
    [
        (  # SergiioB/intel-arc-pro-b70-inference-cookbook issue 4
            "(EngineCore pid=316) ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (4.25 GiB). Based on the available memory, the "
            "estimated maximum model length is 99616. Try increasing",
            "kv_too_small", "context",
            {"context_tokens": 100_000, "kv_needed_bytes": gib(4.26), "kv_cache_bytes": gib(4.25), "max_context_tokens": 99_616},
        ),
        (  # vllm-project/vllm issue 2418
            "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV "
            "cache (3664). Try increasing `gpu_memory_utilization`",
            "kv_too_small", "context", {"context_tokens": 4096, "kv_cache_tokens": 3664},
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "oom_profile", "no_kv_memory", {},
        ),
        (  # llm-d-planner pull request 205: another process held the card
            "ValueError: Free memory on device cuda:0 (60.87/79.19 GiB) on startup is less than desired GPU memory utilization "
            "(0.95, 75.23 GiB). Decrease GPU memory utilization",
            "oom_load", "free_memory",
            {"free_bytes": gib(60.87), "capacity_bytes": gib(79.19), "memory_fraction": 0.95, "budget_bytes": gib(75.23)},
        ),
        (
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856). Each decode sequence requires",
            "kv_too_small", "mamba_blocks", {"max_seqs": 1024, "gpu_blocks": 856},
        ),
        (  # vllm-project/vllm issue 12529
            "ERROR 03-13 09:00:43 [core.py:330] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 "
            "has a total capacity of 7.75 GiB of which 1.17 GiB is free. Including non-PyTorch memory",
            "oom_load", "out_of_memory",
            {"oom_request_bytes": gib(1.16), "oom_capacity_bytes": gib(7.75), "oom_free_bytes": gib(1.17)},
        ),
        (  # vllm-project/vllm issue 15598
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 6 has a total capacity of 44.53 GiB of "
            "which 448.00 KiB is free.",
            "oom_load", "out_of_memory",
            {"oom_request_bytes": 2 * MIB, "oom_capacity_bytes": gib(44.53), "oom_free_bytes": 448 * 1024},
        ),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, line: str, outcome: str, refusal: str, measured: dict[str, float]) -> None:
    found = log(tmp_path, "first line\n" + line + "\n")
    assert (found.outcome, found.refusal, values(found)) == (outcome, refusal, measured)
    assert found.reason is not None
    assert found.reason.line_number == 2
    assert len(found.reason.text) <= 200


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n"
LOADED = "INFO [x.py:1] Model loading took 12.56 GiB and 3.2 seconds\n"
POOL = "INFO [x.py:1] Available KV cache memory: 61.66 GiB\n"
READY = "INFO:     Application startup complete.\n"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (OOM, "oom_load"),
        (LOADED + OOM, "oom_profile"),
        (LOADED + POOL + OOM, "oom_capture"),
        (LOADED + POOL + READY + OOM, "oom_runtime"),
        # One rank has loaded, the other dies while loading: its traceback decides.
        (LOADED + '  File "gpu_worker.py", line 136, in load_model\n' + OOM, "oom_load"),
        (LOADED + '  File "gpu_worker.py", line 200, in determine_available_memory\n' + OOM, "oom_profile"),
        (LOADED + POOL + '  File "gpu_worker.py", line 300, in compile_or_warm_up_model\n' + OOM, "oom_capture"),
        (LOADED + POOL, None),
    ],
)
def test_stage_of_an_out_of_memory(tmp_path: Path, text: str, outcome: str | None) -> None:
    assert log(tmp_path, text).outcome == outcome


def test_the_last_start_of_a_file_counts(tmp_path: Path) -> None:
    first = "INFO [a.py:1] vLLM API server version 0.10.0\n" + LOADED + OOM
    second = "INFO [a.py:1] vLLM API server version 0.10.2rc1.dev5+g12ab\n" + POOL + READY
    found = log(tmp_path, first + second)
    assert (found.starts, found.version, found.outcome) == (2, "0.10.2rc1.dev5+g12ab", "ok")
    assert list(found.measured) == ["kv_cache_bytes"]


# llm-d-planner pull request 205, microsoft/phi-2 at 8192 tokens: the banner of 0.19 and a refusal before any memory is used.
BANNER = """\
(APIServer pid=1) INFO 04-22 19:55:02 [entrypoints/utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.19.0
(APIServer pid=1) INFO 04-22 19:55:02 [entrypoints/utils.py:299]   █▄█▀ █     █     █     █  model   microsoft/phi-2
"""


def test_a_refused_configuration_is_no_stage_of_memory(tmp_path: Path) -> None:
    line = "Value error, User-specified max_model_len (8192) is greater than the derived max_model_len (2048.0)\n"
    found = log(tmp_path, BANNER + line)
    assert (found.version, found.outcome, found.refusal, found.starts) == ("0.19.0", None, "configuration", 1)
    again = log(tmp_path, BANNER + line + BANNER + POOL + READY)
    assert (again.outcome, again.refusal, again.starts) == ("ok", None, 2)


def test_arguments_are_literals_only(tmp_path: Path) -> None:
    line = "args: Namespace(host=None, model='org/m', evil=__import__('os').system('false'), tensor_parallel_size=2)\n"
    assert log(tmp_path, line).arguments == {"host": None, "model": "org/m", "tensor_parallel_size": 2}
    for text in ("{" * 9000, "{'a': " + "[" * 5000, "-" * 60_000 + "1", "{'a': '\\d'}", "{1: }"):
        assert isinstance(log(tmp_path, f"non-default args: {text}\n").arguments, dict)


def test_powershell_logs_are_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_text(POOL, encoding="utf-16")
    assert values(read_log(path)) == {"kv_cache_bytes": gib(61.66)}


def test_hostile_files(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_bytes(b"\x1f\x8b\x08\0\0\0" * 100)
    with pytest.raises(InputError, match=r"--log .*cannot be read"):
        read_log(path)
    path.write_bytes(b"\0\1\2" * 100)
    with pytest.raises(InputError, match="it is not text"):
        read_log(path)
    for absent in (tmp_path, tmp_path / "absent.log", Path("a\0b")):
        with pytest.raises(InputError, match=r"--log .*cannot be read"):
            read_log(absent)


def test_a_packed_log_is_read_like_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "serve.log.gz"
    path.write_bytes(gzip.compress(POOL.encode()))
    assert values(read_log(path)) == {"kv_cache_bytes": gib(61.66)}


@pytest.mark.slow
def test_a_large_log_and_an_endless_line_are_read_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    filler = b"INFO 01-01 00:00:00 [loggers.py:1] Engine 000: Running: 8 reqs, GPU KV cache usage: 91.2%\n"
    path.write_bytes(filler * 50_000 + b"x" * (8 * MIB) + b"\n" + POOL.encode() + POOL.encode() * 30_000)
    before = time.perf_counter()
    found = read_log(path)
    assert time.perf_counter() - before < 20
    assert found.measured["kv_cache_bytes"].line_number == 50_002
    assert len(found.lines) == 20_000
