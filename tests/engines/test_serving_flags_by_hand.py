"""Flags of serving engines, each read for what the engine's own documentation says of it, with the edges of its range.

vllm/engine/arg_utils.py and config/*.py; sglang/srt/server_args.py; llama.cpp/common/arg.cpp and tools/server/README.md.
"""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import Any

import pytest

from trilemma.engines.base import EngineCommand
from trilemma.errors import InputError
from trilemma.plans import Draft, Layout
from trilemma.quantities import GIB

START = {
    "vllm": "vllm serve org/model",
    "sglang": "python -m sglang.launch_server --model-path org/model",
    "llama_cpp": "llama-server -hf org/model-GGUF:Q4_K_M",
}
VERSIONS = {"vllm": "0.33", "sglang": "0.5.20", "llama_cpp": "b10800"}


def read(engine: str, words: str, *, version: str | None = None) -> EngineCommand:
    reader = import_module(f"trilemma.engines.{engine}.read").read
    found: EngineCommand = reader(shlex.split(f"{START[engine]} {words}"), version=version or VERSIONS[engine])
    return found


def at(found: EngineCommand, name: str) -> Any:
    pool = found.plan.pool
    if name == "layout":
        return pool.layout
    if name == "draft":
        return pool.draft
    return pool.options.extra.get(name[6:]) if name.startswith("extra.") else getattr(pool.options, name)


READ: list[tuple[str, str, dict[str, Any]]] = [
    ("vllm", "", {"layout": Layout(), "draft": None, "memory_fraction": None, "context": None, "eager": False,
     "dtype": None,
                  "prefix_caching": None, "chunked_prefill": None, "text_only": False, "cpu_offload_bytes": 0}),
    ("vllm", "--max-model-len 32k", {"context": 32_000}),
    ("vllm", "--max-model-len 32K", {"context": 32_768}),
    ("vllm", "--max-model-len auto", {"context": None, "extra.max-model-len": "auto"}),
    ("vllm", "-tp 4 -pp 2", {"layout": Layout(tp=4, pp=2)}),
    ("vllm", "-tp 2 -dp 4 --enable-expert-parallel", {"layout": Layout(tp=2, dp=4, ep=8)}),
    ("vllm", "-tp 2 -dp 4", {"layout": Layout(tp=2, dp=4)}),
    ("vllm", "--enable-expert-parallel", {"layout": Layout(), "extra.enable-expert-parallel": True}),
    ("vllm", "-tp 8 -dcp 2", {"layout": Layout(tp=8, dcp=2)}),
    ("vllm", "--gpu-memory-utilization 0.5", {"memory_fraction": 0.5}),
    ("vllm", "--kv-cache-memory-bytes 2g", {"kv_cache_bytes": 2_000_000_000}),
    ("vllm", "--kv-cache-memory-bytes 2G", {"kv_cache_bytes": 2 * GIB}),
    ("vllm", "--dtype half", {"dtype": "float16"}),
    ("vllm", "--dtype float", {"dtype": "float32"}),
    ("vllm", "--dtype auto", {"dtype": None}),
    ("vllm", "--kv-cache-dtype auto", {"kv_dtype": None}),
    ("vllm", "--kv-cache-dtype fp8_e5m2", {"kv_dtype": "fp8_e5m2"}),
    ("vllm", "--quantization None", {"quantization": None}),
    ("vllm", "-q awq", {"quantization": "awq"}),
    ("vllm", "--enforce-eager", {"eager": True}),
    ("vllm", "-O0", {"eager": True}),
    ("vllm", "-O1", {"eager": False}),
    ("vllm", "--no-enable-prefix-caching", {"prefix_caching": False}),
    ("vllm", "--enable-prefix-caching", {"prefix_caching": True}),
    ("vllm", "--cpu-offload-gb 2.5", {"cpu_offload_bytes": int(2.5 * GIB)}),
    ("vllm", '--limit-mm-per-prompt \'{"image": 2, "video": 0}\'', {"multimodal_limits": {"image": 2, "video": 0}}),
    ("vllm", '--limit-mm-per-prompt \'{"video": {"count": 1, "num_frames": 8}}\'',
     {"multimodal_limits": {"video": 1}, "extra.limit-mm-per-prompt": {"video": {"count": 1, "num_frames": 8}}}),
    ("vllm", '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'', {"draft": Draft(method="mtp",
     tokens=2)}),
    ("vllm", '--speculative-config \'{"method": "deepseek_mtp", "num_speculative_tokens": 1}\'',
     {"draft": Draft(method="mtp", tokens=1)}),
    ("vllm", '--speculative-config \'{"model": "org/EAGLE3-x", "num_speculative_tokens": 3}\'',
     {"draft": Draft(method="eagle3", tokens=3, model="org/EAGLE3-x")}),
    ("vllm", '--speculative-config \'{"model": "org/small", "num_speculative_tokens": 4096}\'',
     {"draft": Draft(method="draft", tokens=4096, model="org/small")}),
    ("vllm",
     '--speculative-config \'{"method": "ngram", "model": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}\'',
     {"draft": Draft(method="ngram", tokens=4), "extra.speculative-config": {"prompt_lookup_max": 3}}),
    ("vllm", '--speculative-config \'{"method": "suffix"}\'', {"draft": Draft(method="suffix", tokens=24)}),
    ("vllm", '--speculative-config \'{"method": "suffix", "suffix_decoding_max_tree_depth": 8}\'',
     {"draft": Draft(method="suffix", tokens=8)}),
    ("vllm", '--speculative-config \'{"method": "mtp"}\'', {"draft": Draft(method="mtp", tokens=1)}),
    ("vllm", "--speculative-config None", {"draft": None}),
    ("vllm", '--eplb-config \'{"num_redundant_experts": 0, "window_size": 1}\'',
     {"extra.eplb-config": {"num_redundant_experts": 0, "window_size": 1}}),
    ("sglang", "", {"layout": Layout(), "draft": None, "eager": False, "prefix_caching": None,
     "max_batched_tokens": None}),
    ("sglang", "--tp 8 --dp 2 --enable-dp-attention", {"layout": Layout(tp=4, dp=2),
     "extra.enable-dp-attention": True}),
    ("sglang", "--tp 8 --dp 8 --enable-dp-attention --ep-size 8", {"layout": Layout(tp=1, dp=8, ep=8)}),
    ("sglang", "--tp 8 --enable-dp-attention", {"layout": Layout(tp=8), "extra.enable-dp-attention": None}),
    ("sglang", "--tp 4 --dp 2", {"layout": Layout(tp=4, dp=2), "extra.enable-dp-attention": None}),
    ("sglang", "--tp 8 --moe-a2a-backend deepep", {"layout": Layout(tp=8, ep=8)}),
    ("sglang", "--tp 8 --moe-a2a-backend none", {"layout": Layout(tp=8)}),
    ("sglang", "--chunked-prefill-size -1", {"max_batched_tokens": None, "extra.chunked-prefill-size": -1}),
    ("sglang", "--chunked-prefill-size 1", {"max_batched_tokens": 1, "extra.chunked-prefill-size": None}),
    ("sglang", "--disable-radix-cache", {"prefix_caching": False}),
    ("sglang", "--kv-cache-dtype auto --quantization awq", {"kv_dtype": None, "quantization": "awq"}),
    ("sglang", "--dtype half", {"dtype": "float16"}),
    ("sglang", "--cpu-offload-gb 4", {"cpu_offload_bytes": 4 * GIB}),
    ("sglang", "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
               " --speculative-num-draft-tokens 4", {"draft": Draft(method="mtp", tokens=3),
                "extra.speculative-eagle-topk": None}),
    ("sglang", "--speculative-algorithm EAGLE --speculative-draft-model-path org/h --speculative-num-steps 3"
               " --speculative-eagle-topk 2 --speculative-num-draft-tokens 8",
     {"draft": Draft(method="eagle", tokens=3, model="org/h"), "extra.speculative-eagle-topk": 2,
      "extra.speculative-num-draft-tokens": 8}),
    ("sglang", "--speculative-algorithm EAGLE3 --speculative-draft-model-path org/h --speculative-num-draft-tokens 4",
     {"draft": Draft(method="eagle3", tokens=3, model="org/h")}),
    ("sglang", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 1", {"draft": Draft(method="ngram",
     tokens=1)}),
    ("sglang", "--speculative-algorithm NEXTN", {"draft": Draft(method="mtp", tokens=3)}),
    ("llama_cpp", "", {"max_seqs": None, "context": None, "kv_dtype": None, "draft": None}),
    ("llama_cpp", "-c 8192", {"context": 8192}),
    ("llama_cpp", "-c 8192 -np 4", {"context": 2048, "max_seqs": 4}),
    ("llama_cpp", "-c 8192 -np 4 -kvu", {"context": 8192, "max_seqs": 4}),
    ("llama_cpp", "-c 1000 -np 3", {"context": 512, "max_seqs": 3}),  # 333 tokens, padded to 256
    ("llama_cpp", "-np -1", {"max_seqs": None}),
    ("llama_cpp", "-c 0", {"context": None}),
    ("llama_cpp", "-ub 1024", {"max_batched_tokens": 1024}),
    ("llama_cpp", "-ctk q8_0", {"kv_dtype": "q8_0"}),
    ("llama_cpp", "--split-mode none", {"layout": Layout(pp=1)}),
    ("llama_cpp", "--tensor-split 3,1", {"layout": Layout(pp=2)}),
    ("llama_cpp", "--tensor-split 3/1/2", {"layout": Layout(pp=3)}),
    ("llama_cpp", "--device CUDA0,CUDA1", {"layout": Layout(pp=2)}),
    ("llama_cpp", "--device CUDA0", {"layout": Layout(pp=1)}),
    ("llama_cpp", "--device CUDA0,CUDA1 --split-mode row", {"layout": Layout(tp=2)}),
    ("llama_cpp", "--model-draft d.gguf --draft-max 5", {"draft": Draft(method="draft", tokens=5, model="d.gguf")}),
    ("llama_cpp", "--model-draft d.gguf", {"draft": Draft(method="draft", tokens=3, model="d.gguf")}),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "words", "expected"), READ)
def test_a_flag_means_what_its_engine_says(engine: str, words: str, expected: dict[str, Any]) -> None:
    found = read(engine, words)
    assert {name: at(found, name) for name in expected} == expected
    assert not found.unknown_flags


REFUSED = [
    ("vllm", "--gpu-memory-utilization 1.01", "gpu-memory-utilization"),
    ("vllm", "--gpu-memory-utilization 0", "gpu-memory-utilization"),
    ("vllm", "--max-num-seqs 0", "max-num-seqs"),
    ("vllm", "--hf-overrides 3", "--hf-overrides '3' is not a JSON object"),
    (
        "vllm",
        "--eplb-config '{\"num_redundant_experts\": -1}'",
        "num_redundant_experts -1 is out of range; .* at least 0",
    ),
    ("vllm", "--eplb-config '{\"window_size\": 0}'", "window_size 0 is out of range; .* at least 1"),
    ("vllm", "--eplb-config '{\"step_interval\": true}'", "step_interval True is out of range"),
    ("vllm", "--limit-mm-per-prompt 3", "is not a JSON object such as"),
    ("vllm", "--limit-mm-per-prompt '{\"image\": -1}'", "image '-1' is not a count from 0"),
    ("vllm", "--limit-mm-per-prompt '{\"image\": 1048577}'", "image '1048577' is not a count"),
    ("vllm", "--limit-mm-per-prompt '{\"image\": true}'", "image 'True' is not a count"),
    ("vllm", "--speculative-config x", "is not a JSON object such as"),
    ("vllm", "--speculative-config '{\"num_speculative_tokens\": 2}'", "speculative decoding without method or model"),
    ("vllm", '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 0}\'', "from 1 to 4096"),
    ("vllm", '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 4097}\'', "from 1 to 4096"),
    ("vllm", '--speculative-config \'{"method": "mtp", "num_speculative_tokens": true}\'', "from 1 to 4096"),
    ("vllm", "--speculative-config '{\"method\": 3}'", "method '3' is not a name"),
    ("sglang", "--tp 8 --dp 3 --enable-dp-attention", "--dp-size 3 does not divide --tp-size 8"),
    ("sglang", "--mem-fraction-static 1.5", "mem-fraction-static"),
    ("llama_cpp", "-np 0", "--parallel 0 serves no request"),
    ("llama_cpp", "--device CUDA0 --main-gpu x", "main-gpu"),
]


@pytest.mark.parametrize(("engine", "words", "says"), REFUSED)
def test_values_that_an_engine_refuses(engine: str, words: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(engine, words)


def test_edges_that_are_taken() -> None:
    assert at(read("vllm", "--gpu-memory-utilization 1.0"), "memory_fraction") == 1.0
    assert at(read("vllm", "--limit-mm-per-prompt '{\"image\": 1048576}'"), "multimodal_limits") == {"image": 1048576}
    assert [one.code for one in read("vllm", '--speculative-config \'{"method": "mtp"}\'').warnings] == [
        "assumed-draft-tokens"
    ]


@pytest.mark.parametrize(("image", "version"), [
    ("vllm/vllm-openai:v0.19.0-cu130", "0.19.0"), ("vllm/vllm-openai:0.9.1", "0.9.1"), ("vllm/vllm-openai:latest",
     None),
    ("vllm/vllm-openai:v0.11.1rc2", "0.11.1rc2"), ("rocm/vllm-openai-rocm:v0.12.0", "0.12.0"), ("other/vllm:v0.12.0",
     None),
])  # fmt: skip
def test_versions_in_tags_of_images(image: str, version: str | None) -> None:
    reader = import_module("trilemma.engines.vllm.read").read
    assert reader([image, "--model", "org/model"]).plan.engine.version == version


def test_experts_of_part_of_the_ranks_are_said() -> None:
    assert "approximate-experts" in {one.code for one in read("sglang", "--tp 8 --ep-size 4").warnings}
    for words in ("--tp 8 --ep-size 8", "--tp 8", "--tp 8 --dp 4 --enable-dp-attention --ep-size 8"):
        assert "approximate-experts" not in {one.code for one in read("sglang", words).warnings}
    assert "approximate-experts" in {
        one.code for one in read("sglang", "--tp 8 --dp 4 --enable-dp-attention --ep-size 4").warnings
    }
