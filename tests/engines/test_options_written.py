"""Each option of a serving plan as the flag that its engine has for it, one at a time, and back; what engines cannot say.

Flags: vllm/engine/arg_utils.py, sglang/srt/server_args.py, tensorrt_llm/commands/serve.py and llmapi/llm_args.py (YAML),
llama.cpp/common/arg.cpp.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from trilemma.engines.tensorrt_llm.write import yaml_options
from trilemma.errors import InputError
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB

PACKAGES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llama_cpp"}
VERSIONS = {"vllm": "0.11.0", "sglang": "0.5.5", "tensorrt-llm": "1.2.1", "llama.cpp": "b6900"}
MODEL = "org/model"


def plan(engine: str, layout: Layout | None = None, draft: Draft | None = None, **options: Any) -> Plan:
    pool = Pool(layout=layout or Layout(), options=ServeOptions(**options), draft=draft)
    return Plan(engine=EngineRef(name=engine, version=VERSIONS[engine]), pools=(pool,))


def written(one: Plan) -> list[str]:
    found: list[str] = import_module(f"trilemma.engines.{PACKAGES[one.engine.name]}.write").write(model=MODEL, plan=one)
    return found


def added(one: Plan) -> list[str]:
    """What the plain command lacks."""
    plain = written(plan(one.engine.name))
    words = written(one)
    assert words[: len(plain)] == plain or one.engine.name == "llama.cpp"
    return [word for word in words[len(plain) :] if word not in ("--extra_llm_api_options", "trtllm.yaml")]


def back(one: Plan, folder: Path) -> Plan:
    words = written(one)
    if "trtllm.yaml" in words:
        path = folder / "trtllm.yaml"
        path.write_text(yaml.safe_dump(yaml_options(one)))
        words = [str(path) if word == "trtllm.yaml" else word for word in words]
    read = import_module(f"trilemma.engines.{PACKAGES[one.engine.name]}.read").read
    found: Plan = read(words, version=VERSIONS[one.engine.name]).plan
    return found


#: (engine, options, words added, keys of the YAML)
WRITTEN: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("vllm", {"memory_fraction": 0.85}, "--gpu-memory-utilization 0.85", {}),
    ("vllm", {"context": 8192}, "--max-model-len 8192", {}),
    ("vllm", {"max_seqs": 96}, "--max-num-seqs 96", {}),
    ("vllm", {"max_batched_tokens": 4096}, "--max-num-batched-tokens 4096", {}),
    ("vllm", {"block_size": 32}, "--block-size 32", {}),
    ("vllm", {"dtype": "float16"}, "--dtype float16", {}),
    ("vllm", {"kv_dtype": "fp8"}, "--kv-cache-dtype fp8", {}),
    ("vllm", {"quantization": "fp8"}, "--quantization fp8", {}),
    ("vllm", {"eager": True}, "--enforce-eager", {}),
    ("vllm", {"prefix_caching": False}, "--no-enable-prefix-caching", {}),
    ("vllm", {"cpu_offload_bytes": 4 * GIB}, "--cpu-offload-gb 4", {}),
    ("vllm", {"kv_cache_bytes": 8 * GIB}, f"--kv-cache-memory-bytes {8 * GIB}", {}),
    ("sglang", {"memory_fraction": 0.85}, "--mem-fraction-static 0.85", {}),
    ("sglang", {"context": 8192}, "--context-length 8192", {}),
    ("sglang", {"max_seqs": 96}, "--max-running-requests 96", {}),
    ("sglang", {"max_batched_tokens": 4096}, "--chunked-prefill-size 4096", {}),
    ("sglang", {"block_size": 32}, "--page-size 32", {}),
    ("sglang", {"dtype": "float16"}, "--dtype float16", {}),
    ("sglang", {"kv_dtype": "fp8_e5m2"}, "--kv-cache-dtype fp8_e5m2", {}),
    ("sglang", {"quantization": "fp8"}, "--quantization fp8", {}),
    ("sglang", {"eager": True}, "--disable-cuda-graph", {}),
    ("sglang", {"prefix_caching": False}, "--disable-radix-cache", {}),
    ("sglang", {"cuda_graph_sizes": (1, 2, 8)}, "--cuda-graph-bs 1 2 8", {}),
    ("sglang", {"cpu_offload_bytes": 4 * GIB}, "--cpu-offload-gb 4", {}),
    ("tensorrt-llm", {"memory_fraction": 0.85}, "--kv_cache_free_gpu_memory_fraction 0.85", {}),
    ("tensorrt-llm", {"context": 8192}, "--max_seq_len 8192", {}),
    ("tensorrt-llm", {"max_seqs": 96}, "--max_batch_size 96", {}),
    ("tensorrt-llm", {"max_batched_tokens": 4096}, "--max_num_tokens 4096", {}),
    ("tensorrt-llm", {"chunked_prefill": True}, "--enable_chunked_prefill", {}),
    ("tensorrt-llm", {"block_size": 64}, "", {"kv_cache_config": {"tokens_per_block": 64}}),
    ("tensorrt-llm", {"kv_dtype": "fp8"}, "", {"kv_cache_config": {"dtype": "fp8"}}),
    ("tensorrt-llm", {"prefix_caching": False}, "", {"kv_cache_config": {"enable_block_reuse": False}}),
    ("tensorrt-llm", {"prefix_caching": True}, "", {"kv_cache_config": {"enable_block_reuse": True}}),
    ("tensorrt-llm", {"eager": True}, "", {"cuda_graph_config": None}),
    ("tensorrt-llm", {"cuda_graph_sizes": (1, 2, 8)}, "",
     {"cuda_graph_config": {"batch_sizes": [1, 2, 8], "enable_padding": True}}),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "options", "words", "keys"), WRITTEN)
def test_an_option_is_its_flag(
    engine: str, options: dict[str, Any], words: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    one = plan(engine, **options)
    assert " ".join(added(one)) == words
    if engine == "tensorrt-llm":
        assert yaml_options(one) == keys
    again = back(one, tmp_path).pool.options
    for name, value in options.items():
        assert getattr(again, name) == value, name


#: (engine, layout, words added)
LAID_OUT = [
    ("vllm", Layout(tp=4), "--tensor-parallel-size 4"),
    ("vllm", Layout(pp=2), "--pipeline-parallel-size 2"),
    ("vllm", Layout(tp=2, dp=2, ep=4), "--tensor-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel"),
    ("vllm", Layout(tp=8, dcp=2), "--tensor-parallel-size 8 --decode-context-parallel-size 2"),
    ("sglang", Layout(tp=4), "--tp-size 4"),
    ("sglang", Layout(pp=2), "--pp-size 2"),
    ("sglang", Layout(tp=2, dp=2), "--tp-size 2 --dp-size 2"),
    ("sglang", Layout(tp=1, dp=8, ep=8), "--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8"),
    ("sglang", Layout(tp=2, dp=4, ep=8), "--tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8"),
    ("tensorrt-llm", Layout(tp=4), "--tp_size 4"),
    ("tensorrt-llm", Layout(tp=2, pp=2), "--tp_size 2 --pp_size 2"),
    ("tensorrt-llm", Layout(tp=8, ep=4), "--tp_size 8 --ep_size 4"),
    ("tensorrt-llm", Layout(cp=2), "--cp_size 2"),
    ("tensorrt-llm", Layout(dp=8, ep=8), "--tp_size 8 --ep_size 8"),
]


@pytest.mark.parametrize(("engine", "layout", "words"), LAID_OUT)
def test_a_layout_is_its_flags(engine: str, layout: Layout, words: str, tmp_path: Path) -> None:
    one = plan(engine, layout)
    assert " ".join(added(one)) == words
    assert back(one, tmp_path).pool.layout == layout
    if engine == "tensorrt-llm":
        assert yaml_options(one) == ({"enable_attention_dp": True} if layout.dp > 1 else {})


def test_sglang_counts_requests_over_replicas_of_attention() -> None:
    shared = added(plan("sglang", Layout(dp=4, ep=4), max_seqs=32))
    assert shared[shared.index("--max-running-requests") + 1] == "128"
    whole = added(plan("sglang", Layout(dp=4), max_seqs=32))
    assert whole[whole.index("--max-running-requests") + 1] == "32"


#: (engine, draft, words added, its part of the YAML)
DRAFTED: list[tuple[str, Draft, str, dict[str, Any] | None]] = [
    ("sglang", Draft(method="eagle3", tokens=3, model="org/head"),
     "--speculative-algorithm EAGLE3 --speculative-draft-model-path org/head --speculative-num-steps 3"
     " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4", None),
    ("sglang", Draft(method="mtp", tokens=1),
     "--speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2", None),
    ("sglang", Draft(method="draft", tokens=4, model="org/small"),
     "--speculative-algorithm STANDALONE --speculative-draft-model-path org/small --speculative-num-steps 4"
     " --speculative-eagle-topk 1 --speculative-num-draft-tokens 5", None),
    ("sglang", Draft(method="ngram", tokens=4), "--speculative-algorithm NGRAM --speculative-num-draft-tokens 5", None),
    ("tensorrt-llm", Draft(method="mtp", tokens=2), "", {"decoding_type": "MTP", "num_nextn_predict_layers": 2}),
    ("tensorrt-llm", Draft(method="eagle3", tokens=3, model="org/head"), "",
     {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "org/head"}),
    ("tensorrt-llm", Draft(method="draft", tokens=4, model="org/small"), "",
     {"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "org/small"}),
    ("tensorrt-llm", Draft(method="ngram", tokens=5), "", {"decoding_type": "NGram", "max_draft_len": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "draft", "words", "config"), DRAFTED)
def test_a_draft_is_its_flags(
    engine: str, draft: Draft, words: str, config: dict[str, Any] | None, tmp_path: Path
) -> None:
    one = plan(engine, draft=draft)
    assert " ".join(added(one)) == words
    if config is not None:
        assert yaml_options(one) == {"speculative_config": config}
    again = back(one, tmp_path).pool.draft
    assert again is not None
    assert (again.method, again.tokens, again.model) == (draft.method, draft.tokens, draft.model)


@pytest.mark.parametrize(
    ("engine", "layout", "draft", "says"),
    [
        ("sglang", Layout(cp=2), None, "--cp 2: context parallelism of SGLang is not written"),
        ("sglang", Layout(), Draft(method="medusa", tokens=2), "SGLang drafts by"),
        ("tensorrt-llm", Layout(), Draft(method="medusa", tokens=2), "TensorRT-LLM drafts by mtp"),
        ("tensorrt-llm", Layout(tp=8, dcp=2), None, "--dcp 2"),
        ("tensorrt-llm", Layout(tp=2, dp=2, ep=4), None, "--tp 2 x --dp 2"),
        ("llama.cpp", Layout(tp=2, pp=2), None, "by layers .* or by rows .*, not both"),
        ("llama.cpp", Layout(dp=2, ep=2), None, "not both, and nothing else"),
        ("llama.cpp", Layout(), Draft(method="medusa", tokens=2), "llama.cpp drafts by"),
    ],
)
def test_what_an_engine_cannot_say_is_refused(engine: str, layout: Layout, draft: Draft | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        written(plan(engine, layout, draft))


def test_a_kept_speculative_config_wins_over_the_draft() -> None:
    kept = {"decoding_type": "Eagle", "max_draft_len": 7}
    one = plan("tensorrt-llm", draft=Draft(method="eagle3", tokens=3), extra={"speculative_config": kept})
    assert yaml_options(one)["speculative_config"] == kept
    assert yaml_options(replace(one, pools=(replace(one.pool, draft=None),)))["speculative_config"] == kept


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("kv_cache_config: {max_tokens: 0}", "kv_cache_config.max_tokens '0' is not a whole number"),
        ("kv_cache_config: {tokens_per_block: true}", "tokens_per_block 'True'"),
        ("kv_cache_config: {tokens_per_block: 16777217}", "tokens_per_block"),
        ("cuda_graph_config: {batch_sizes: [1, 2.5]}", "cuda_graph_config.batch_sizes '2.5'"),
        ("cuda_graph_config: {max_batch_size: 0}", "cuda_graph_config.max_batch_size '0'"),
        ("speculative_config: {decoding_type: NGram, max_draft_len: -1}", "speculative_config.max_draft_len '-1'"),
    ],
)
def test_numbers_of_the_yaml_that_are_none(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(content)
    read = import_module("trilemma.engines.tensorrt_llm.read").read
    with pytest.raises(InputError, match=says):
        read(["trtllm-serve", MODEL, "--config", str(path)])


def test_the_yaml_of_a_server(tmp_path: Path) -> None:
    """What is left of the file stays as it is, what a plan has a place for goes there."""
    path = tmp_path / "o.yaml"
    path.write_text(
        "kv_cache_config: {max_tokens: 16777216, tokens_per_block: 1, host_cache_size: 5}\n"
        "cuda_graph_config: {batch_sizes: [1, 4], enable_padding: false}\nprint_iter_log: true\n"
    )
    read = import_module("trilemma.engines.tensorrt_llm.read").read
    options = read(["trtllm-serve", MODEL, "--tp_size", "2", "--config", str(path)], version="1.2.1").plan.pool.options
    assert (options.block_size, options.cuda_graph_sizes, options.eager) == (1, (1, 4), False)
    assert options.extra["kv_cache_config"] == {"max_tokens": 16777216, "host_cache_size": 5}
    assert options.extra["print_iter_log"] is True
    path.write_text("cuda_graph_config:\n")
    options = read(["trtllm-serve", MODEL, "--config", str(path)], version="1.2.1").plan.pool.options
    assert (options.eager, options.cuda_graph_sizes, options.extra) == (True, None, {})
    path.write_text("")
    assert read(["trtllm-serve", MODEL, "--config", str(path)], version="1.2.1").plan.pool.options == ServeOptions()
