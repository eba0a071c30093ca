"""The lines of a vLLM start-up log that measure memory, as its versions from 0.4 on print them.

Formats read in vllm/worker/worker.py, vllm/v1/worker/{gpu_worker,gpu_model_runner,utils}.py, vllm/v1/core/kv_cache_*.py,
vllm/utils/mem_utils.py and vllm/config/compilation.py of the wheels 0.4.3 to 0.33.0. What old versions call GB is GiB
(they divide by 2**30).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trilemma.engines.base import Stage
from trilemma.engines.start_log import Refusal
from trilemma.quantities import GIB, KIB, MIB

_N = r"(-?[0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?)"
_GIB = rf"{_N}\s?Gi?B"
_UNITS = {"B": 1, "bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True, kw_only=True, slots=True)
class LinePattern:
    """One kind of line: ``marker`` is a text it always holds, ``pattern`` its groups, ``names`` what each measures.

    Names end in their unit; groups named ``*_bytes`` are printed in GiB.
    """

    marker: str
    pattern: re.Pattern[str]
    names: tuple[str, ...]


def _line(marker: str, pattern: str, *names: str) -> LinePattern:
    return LinePattern(marker=marker, pattern=re.compile(pattern), names=names)


MEASURING = (
    _line("model weights took", rf"Loading model weights took {_GIB}", "weights_bytes"),
    _line("Model loading took", rf"Model loading took {_GIB}(?: memory)? and {_N} seconds", "weights_bytes", "load_s"),
    # 0.5 to 0.10, the first engine; 0.6.5 printed a table of the same words without "takes".
    _line("total_gpu_memory", rf"total_gpu_memory(?: \(|\s+){_GIB}", "capacity_bytes"),
    _line("gpu_memory_utilization", rf"x gpu_memory_utilization \({_N}\) = {_GIB}", "memory_fraction", "budget_bytes"),
    _line("instance can use  ", rf"the current vLLM instance can use\s+{_GIB}", "budget_bytes"),
    _line("model weights take", rf"model weights take\s+{_GIB}", "weights_bytes"),
    _line("non_torch_memory", rf"non_torch_memory(?: takes)?\s+{_GIB}", "non_torch_bytes"),
    _line("activation peak memory", rf"PyTorch activation peak memory(?: takes)?\s+{_GIB}", "activation_bytes"),
    _line("reserved for KV Cache", rf"reserved for KV Cache is\s+{_GIB}", "kv_cache_bytes"),
    _line("available_kv_cache_memory ", rf"available_kv_cache_memory\s+{_GIB}", "kv_cache_bytes"),
    # The second engine.
    _line("Available KV cache memory", rf"Available KV cache memory: {_GIB}", "kv_cache_bytes"),
    _line("skipped memory profiling", rf"free memory {_GIB}, reserved {_GIB}", "free_bytes", "kv_cache_bytes"),
    _line("KV cache size", rf"KV cache size: {_N} tokens", "kv_cache_tokens"),
    _line("Maximum concurrency", rf"Maximum concurrency for {_N} tokens per request: {_N}x", "context_tokens", "max_concurrency"),
    _line(" blocks: ", rf"# [A-Za-z]{{2,12}} blocks: {_N}(?:,|$|\s)", "gpu_blocks"),
    _line("num_gpu_blocks_override", rf"Overriding num_gpu_blocks={_N} with num_gpu_blocks_override={_N}",
          "gpu_blocks_profiled", "gpu_blocks"),
    _line("attention block size", rf"Setting attention block size to {_N} tokens", "block_tokens"),
    _line("Graph capturing finished", rf"Graph capturing finished in {_N} secs, took {_GIB}", "capture_s", "cuda_graph_bytes"),
    _line("Estimated CUDA graph", rf"Estimated CUDA graph memory: {_GIB}", "cuda_graph_estimate_bytes"),
    _line("CUDA graph pool memory", rf"CUDA graph pool memory: {_GIB} \(actual\), {_GIB}",
          "cuda_graph_bytes", "cuda_graph_estimate_bytes"),
    _line("Requested memory", rf"Initial free memory: {_GIB}; Requested memory: {_N} \(util\), {_GIB}",
          "free_bytes", "memory_fraction", "budget_bytes"),
    _line("Total non KV cache memory", rf"Total non KV cache memory: {_GIB}", "non_kv_bytes"),
    _line("torch peak memory increase", rf"torch peak memory increase: {_GIB}", "activation_bytes"),
    _line("non-torch forward increase", rf"non-torch forward increase memory: {_GIB}", "non_torch_bytes"),
    _line("total consumed (from", rf"total consumed \(from mem_get_info\): {_GIB}", "consumed_bytes"),
    _line("weights memory: ", rf"weights memory: {_GIB}", "weights_bytes"),
    _line("Free memory on device", rf"Free memory on device [^(]{{0,40}}\({_N}/{_GIB}\)", "free_bytes", "capacity_bytes"),
    _line("Desired GPU memory utilization is", rf"utilization is \({_N}, {_GIB}\)", "memory_fraction", "budget_bytes"),
    _line("Actual usage is", rf"Actual usage is {_GIB} for weight", "weights_bytes"),
    _line("for consumed memory", rf"Actual usage is {_GIB} for consumed memory", "consumed_bytes"),
    # Where graphs are charged to the budget this figure holds their estimate too, so it has a name of its own.
    _line("for peak activation", rf"{_GIB}\s+for peak activation", "peak_with_graphs_bytes"),
    _line("for non-torch memory", rf"{_GIB} for non-torch memory", "non_torch_bytes"),
    _line("for CUDAGraph memory", rf"{_GIB} for CUDAGraph memory", "cuda_graph_bytes"),
    # Refusals.
    _line("is less than desired", rf"less than desired GPU memory utilization \({_N}, {_GIB}\)",
          "memory_fraction", "budget_bytes"),
    _line("To serve at least one request", rf"max seq len \({_N}\), \({_GIB} KV\s+cache is needed",
          "context_tokens", "kv_needed_bytes"),
    _line("available KV cache", rf"available KV cache\s+memory \({_GIB}\)", "kv_cache_bytes"),
    _line("estimated maximum model length", rf"estimated maximum model length is {_N}", "max_context_tokens"),
    _line("stored in KV cache", rf"max seq len \({_N}\) .{{0,80}}stored in KV cache \({_N}\)",
          "context_tokens", "kv_cache_tokens"),
    _line("available Mamba cache", rf"max_num_seqs \({_N}\) exceeds available Mamba cache blocks \({_N}\)",
          "max_seqs", "gpu_blocks"),
)  # fmt: skip

#: "Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 7.75 GiB of which 1.17 GiB is free." (torch, CUDA and HIP)
OUT_OF_MEMORY = re.compile(
    rf"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate {_N} (MiB|GiB|KiB|bytes)"
    rf"(?:.{{0,80}}?total capacity of {_N} (MiB|GiB) of which {_N} (MiB|GiB|KiB|bytes|B) is free)?"
)
OUT_OF_MEMORY_NAMES = ("oom_request_bytes", "oom_capacity_bytes", "oom_free_bytes")

#: Texts by which the engine refuses to start, and what they mean.
REFUSALS: tuple[tuple[str, Refusal], ...] = (
    ("is less than desired", "free_memory"),
    ("less than the engine's budget", "free_memory"),
    ("No available memory for the cache blocks", "no_kv_memory"),
    ("To serve at least one request", "context"),
    ("larger than the maximum number of tokens that can be", "context"),
    ("exceeds available Mamba cache", "mamba_blocks"),
    ("out of memory. Tried to allocate", "out_of_memory"),
    # Refused before any memory is touched: no stage of start-up.
    ("is greater than the derived max_model_len", "configuration"),
    ("must be divisible by tensor parallel size", "configuration"),
    ("error: unrecognized arguments", "configuration"),
)
#: Function names of a traceback that tell where an out-of-memory happened.
_LOADING = ("load_model", "_load_model", "get_model", "load_weights")
_PROFILING = (
    "determine_available_memory",
    "determine_num_available_blocks",
    "profile_run",
    "profile_num_available_blocks",
)
_CAPTURING = (
    "capture_model", "_capture_cudagraphs", "compile_or_warm_up_model",
    "initialize_from_config", "initialize_kv_cache", "_allocate_kv_cache_tensors", "initialize_cache",
)  # fmt: skip
TRACEBACK: tuple[tuple[re.Pattern[str], Stage], ...] = (
    (re.compile(rf"\bin (?:{'|'.join(_LOADING)})\b"), "oom_load"),
    (re.compile(rf"\bin (?:{'|'.join(_PROFILING)})\b"), "oom_profile"),
    (re.compile(rf"\bin (?:{'|'.join(_CAPTURING)})\b"), "oom_capture"),
)
#: What stands before the words of a line: rank, level, date, source, and the class of an error.
PREFIX = re.compile(
    r"^\s*(?:\([A-Za-z][^)]{0,80}\)\s*)*(?:(?:INFO|ERROR|WARNING|DEBUG|CRITICAL)\s+)?(?:\d\d-\d\d \d\d:\d\d:\d\d\s+)?"
    r"(?:\[[^\]]{0,80}\]\s*)?(?:\([A-Za-z][^)]{0,80}\)\s*)*(?:[\w.]{1,60}(?:Error|Exception):\s+)?"
)
READY = ("Application startup complete", "Uvicorn running on", "init engine (profile", "vLLM API server on http")

VERSION = re.compile(
    r"(?:vLLM (?:API )?server version |LLM engine \(v|█  version )v?([0-9][\w.+-]{0,60}?)(?:\)| with config|[,\s]|$)"
)
LOADING = re.compile(r"(?:Starting|Beginning) to load model (\S{1,300}?)\.\.\.")
RESTART = re.compile(r"vLLM (?:API )?server version |█  version ")
RANK = re.compile(r"\((?:VllmWorker(?:Process)?|Worker|EngineCore|RayWorkerWrapper|RayWorkerProc)[^)]{0,80}\)")


def number(text: str) -> float:
    return float(text.replace(",", ""))


def measured_in(line: str) -> list[tuple[str, float]]:
    """(name, value) of everything that one line measures; bytes in bytes."""
    found: list[tuple[str, float]] = []
    for kind in MEASURING:
        if kind.marker in line and (match := kind.pattern.search(line)):
            for name, text in zip(kind.names, match.groups(), strict=True):
                value = number(text)
                found.append((name, float(round(value * GIB)) if name.endswith("_bytes") else value))
    if "out of memory. Tried" in line and (match := OUT_OF_MEMORY.search(line)):
        groups = match.groups()
        for name, text, unit in zip(OUT_OF_MEMORY_NAMES, groups[::2], groups[1::2], strict=True):
            if text is not None:
                found.append((name, float(round(number(text) * _UNITS[unit]))))
    return found
