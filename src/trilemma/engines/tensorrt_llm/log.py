"""A TensorRT-LLM start-up log read: weights, cache and what profiling found, and where the start ended.

Lines: tensorrt_llm/_torch/pyexecutor/_util.py, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (0.9 to 1.2).
"""

from __future__ import annotations

import re
from functools import partial

from trilemma.engines.start_words import NUMBER, StartWords, WordsReader, line

_GIB = rf"{NUMBER} GiB"
WORDS = StartWords(
    measuring=(
        line("inside torch", rf"after loading model weights \(inside torch\).{{0,60}}?: {_GIB}", "weights_bytes"),
        line("outside torch", rf"after loading model weights \(outside torch\).{{0,60}}?: {_GIB}", "non_torch_bytes"),
        line("Loaded engine size", rf"Loaded engine size: {NUMBER} MiB", "weights_bytes", unit="MiB"),
        line("max tokens in paged KV cache", rf"Allocated {_GIB} for max tokens in paged KV cache \({NUMBER}\)",
             "kv_cache_bytes", "kv_cache_tokens"),
        line("available KV cache memory", rf"available KV cache memory when calculating max tokens: {_GIB}", "kv_budget_bytes"),
        line("device total memory", rf"device total memory {_GIB}", "capacity_bytes"),
        line("execution context memory", rf"Allocated {NUMBER} MiB for execution context memory", "activation_bytes", unit="MiB"),
    ),
    refusals=(
        ("out of memory. Tried to allocate", "out_of_memory"),
        ("Out of memory", "out_of_memory"),
        ("is larger than the maximum number of tokens that can be stored in KV cache", "context"),
        ("exceeds the max attention window", "context"),
    ),
    ready=("Application startup complete", "Uvicorn running on", "successfully loaded 'tensorrt_llm'"),
    begins=re.compile(r"TensorRT-LLM version: "),
    rank=re.compile(r"\[(?:RANK|TRT-LLM\]\[RANK) (\d{1,5})\]"),
    version=re.compile(r"TensorRT(?:-| )LLM version: (\d[\w.+-]{0,40})"),
)  # fmt: skip
MARKS = (*WORDS.marks, "LLM version: ")

LogReader = partial(WordsReader, WORDS)
