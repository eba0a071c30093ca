"""A llama.cpp start-up log read: buffers by device, and where the start ended.

Lines: src/llama-model.cpp (``model buffer size``), src/llama-kv-cache*.cpp (``KV buffer size``), src/llama-context.cpp (``compute
buffer size``, ``n_ctx``), ggml-cuda.cu (failed allocations), tools/server (builds of 2024 to 2026).
"""

from __future__ import annotations

import re
from functools import partial

from trilemma.engines.start_words import NUMBER, StartWords, WordsReader, line

_MIB = rf"{NUMBER} MiB"
#: Buffers of devices; those of the host are named CPU, CPU_Mapped or CUDA_Host.
_DEVICE = r"(?:CUDA|ROCm|Vulkan|SYCL|Metal|MTL|HIP)\d{0,3}"
WORDS = StartWords(
    measuring=(
        line(" buffer size", rf"(?:load_tensors|llm_load_tensors):\s+{_DEVICE}(?: model)? buffer size\s+=\s+{_MIB}",
             "weights_bytes", unit="MiB"),
        line("KV buffer size", rf":\s+{_DEVICE} KV buffer size\s+=\s+{_MIB}", "kv_cache_bytes", unit="MiB"),
        line("RS buffer size", rf":\s+{_DEVICE} RS buffer size\s+=\s+{_MIB}", "state_bytes", unit="MiB"),
        line("compute buffer size", rf":\s+{_DEVICE} compute buffer size\s+=\s+{_MIB}", "activation_bytes", unit="MiB"),
        line("KV self size", rf"KV self size\s+=\s+{_MIB}", "kv_cache_total_bytes", unit="MiB"),
        line("size = ", rf"llama_kv_cache\w*: size\s+=\s+{_MIB}", "kv_cache_total_bytes", unit="MiB"),
        line("n_ctx ", rf"n_ctx\s+=\s+{NUMBER}", "kv_cache_tokens"),
        line("n_ctx_per_seq", rf"n_ctx_per_seq\s+=\s+{NUMBER}", "context_tokens"),
        line("n_ctx_seq", rf"n_ctx_seq\s+=\s+{NUMBER}", "context_tokens"),
        line("n_seq_max", rf"n_seq_max\s+=\s+{NUMBER}", "max_seqs"),
        line("n_ubatch", rf"n_ubatch\s+=\s+{NUMBER}", "batch_tokens"),
        line("layers to GPU", rf"offloaded {NUMBER}/{NUMBER} layers to GPU", "layers_on_gpu", "layers"),
    ),
    refusals=(
        ("cudaMalloc failed: out of memory", "out_of_memory"),
        ("hipMalloc failed: out of memory", "out_of_memory"),
        ("unable to allocate CUDA", "out_of_memory"),
        ("failed to allocate compute buffers", "out_of_memory"),
        ("failed to load model", "configuration"),
    ),
    ready=("server is listening on", "HTTP server listening", "all slots are idle"),
    begins=re.compile(r"(?:^|\s)(?:build: \d{3,6} \(|llama_model_loader: loaded meta data with)"),
    rank=re.compile(rf"({_DEVICE}) (?:model |KV |RS |compute )?buffer size"),
    version=re.compile(r"build: (\d{3,6}) \("),
    version_prefix="b",
    model=re.compile(r"loaded meta data with .{0,80} from (\S{1,300}\.gguf)"),
    summed=frozenset(("weights_bytes", "kv_cache_bytes", "activation_bytes", "state_bytes")),
)  # fmt: skip
MARKS = (*WORDS.marks, "build: ", "loaded meta data with")

LogReader = partial(WordsReader, WORDS)
