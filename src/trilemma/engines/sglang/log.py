"""An SGLang start-up log read: what each rank measured, and where the start ended.

Lines: python/sglang/srt/model_executor/model_runner.py, mem_cache/memory_pool.py, managers/scheduler.py,
entrypoints/http_server.py (0.3 to 0.5). What it calls GB is GiB (it divides by 2**30).
"""

from __future__ import annotations

import re
from functools import partial

from trilemma.engines.start_words import NUMBER, StartWords, WordsReader, line

_GB = rf"{NUMBER}\s?GB"
WORDS = StartWords(
    measuring=(
        line("Load weight begin", rf"Load weight begin\. avail mem={_GB}", "free_bytes"),
        line("Load weight end", rf"Load weight end\..{{0,300}}?mem usage={_GB}", "weights_bytes"),
        line("KV Cache is allocated", rf"#tokens: {NUMBER}, K size: {_GB}, V size: {_GB}",
             "kv_cache_tokens", "kv_cache_bytes", "kv_cache_bytes"),
        line("KV Cache is allocated", rf"#tokens: {NUMBER}, KV size: {_GB}", "kv_cache_tokens", "kv_cache_bytes"),
        line("Memory pool end", rf"Memory pool end\. avail mem={_GB}", "left_bytes"),
        line("Capture cuda graph end", rf"Capture cuda graph end\..{{0,200}}?mem usage={_GB}", "cuda_graph_bytes"),
        line("max_total_num_tokens=", rf"max_total_num_tokens={NUMBER}", "kv_cache_tokens"),
        line("max_running_requests=", rf"max_running_requests={NUMBER}, context_len={NUMBER}", "max_seqs", "context_tokens"),
    ),
    refusals=(
        ("Not enough memory. Please try to increase --mem-fraction-static", "no_kv_memory"),
        ("out of memory. Tried to allocate", "out_of_memory"),
        ("Capture cuda graph failed: CUDA out of memory", "out_of_memory"),
    ),
    ready=("The server is fired up and ready to roll", "Application startup complete", "Uvicorn running on"),
    begins=re.compile(r"server_args=ServerArgs\("),
    rank=re.compile(r"\b((?:DP\d{1,4} )?(?:TP\d{1,4})(?: EP\d{1,4})?)\]"),
    arguments="server_args=",
    model_key="model_path",
    capturing=("Capture cuda graph begin",),
)  # fmt: skip
MARKS = WORDS.marks

LogReader = partial(WordsReader, WORDS)
