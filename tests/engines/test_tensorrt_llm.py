"""TensorRT-LLM: pools of what is free after the peak, trtllm-serve and its YAML both ways."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import trilemma as tl
from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.tensorrt_llm.facts import for_version
from trilemma.engines.tensorrt_llm.read import read
from trilemma.engines.tensorrt_llm.write import write, yaml_options
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB


def _start(
    model: str, gpu: str, layout: Layout | None = None, *, version: str | None = "1.2", **options: Any
) -> StartUp:
    return engines.get("tensorrt-llm").start_up(
        model=load_model(model),
        accelerator=find(gpu),
        layout=layout or Layout(),
        options=ServeOptions(**options),
        version=version,
    )


def test_pool_of_a_built_engine() -> None:
    # 10,718 tokens of 524,288 bytes at 0.95 of free memory (NVIDIA/TensorRT-LLM issue 224, an engine built in 2023 for 25 prompts
    # of the default length of 1,024, which is what it takes for a pass where no tokens are stated).
    stated: dict[str, Any] = {"memory_fraction": 0.95, "max_seqs": 25, "max_batched_tokens": 25 * 1024}
    pool = _start("meta-llama/Llama-2-7b-hf", "a10", version="0.5", **stated).pool
    assert float(pool.bytes_per_token_per_gpu) == 524288
    assert float(pool.tokens) == pytest.approx(10718, rel=0.06)
    assert float(pool.available_low_bytes) < 10718 * 524288 < float(pool.available_high_bytes)
    unknown = _start("meta-llama/Llama-2-7b-hf", "a10", version=None, **stated).pool
    assert float(unknown.available_low_bytes) < 10718 * 524288 < float(unknown.available_high_bytes)


def test_pool_of_the_pytorch_backend() -> None:
    # 42.38 GiB for Gemma 3 27B in FP8 at 0.9 on an 80 GB card (NVIDIA/TensorRT-LLM pull request 18669).
    model = requantize(load_model("google/gemma-3-27b-it"), "fp8")
    start = engines.get("tensorrt-llm").start_up(
        model=model, accelerator=find("h100-sxm"), layout=Layout(), options=ServeOptions(), version="1.2"
    )  # fmt: skip
    pool = start.pool
    assert float(pool.available_low_bytes) < 42.38 * GIB < float(pool.available_high_bytes)


def test_share_is_of_what_is_free() -> None:
    half, most = (_start("llama-3.1-8b", "h100-sxm", memory_fraction=share).pool for share in (0.45, 0.9))
    assert float(most.available_bytes) == pytest.approx(2 * float(half.available_bytes), rel=1e-3)


def test_tables_and_single_plans_agree() -> None:
    tp, pp = np.array([1, 2, 4]), np.array([2, 1, 1])
    whole = engines.get("tensorrt-llm").start_up(
        model=load_model("llama-3.1-8b"), accelerator=find("h100-sxm"), layout=Layout(tp=tp, pp=pp),
        options=ServeOptions(), version="1.2",
    )  # fmt: skip
    for row in range(3):
        one = _start("llama-3.1-8b", "h100-sxm", Layout(tp=int(tp[row]), pp=int(pp[row])))
        assert float(whole.pool.available_bytes[row]) == pytest.approx(float(one.pool.available_bytes))
    low, high = engines.get("trtllm").feasible_fraction(whole) or (None, None)
    assert np.shape(low) == np.shape(high) == (3,)


def test_command_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(
        "enable_attention_dp: true\nmax_batch_size: 64\n"
        "kv_cache_config: {free_gpu_memory_fraction: 0.8, dtype: fp8, enable_block_reuse: false}\n"
        "cuda_graph_config: {max_batch_size: 64}\nspeculative_config: {decoding_type: MTP, num_nextn_predict_layers: 2}\n"
    )
    command = read(
        shlex.split(
            f"trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 8 --max_batch_size 128 --max_num_tokens 4096"
            f" --extra_llm_api_options {path}"
        ),
        version="1.2.1",
    )
    pool = command.plan.pool
    assert pool.layout == Layout(tp=1, dp=8, ep=8)
    assert pool.draft == Draft(method="mtp", tokens=2)
    assert (pool.options.memory_fraction, pool.options.max_seqs, pool.options.kv_dtype) == (0.8, 64, "fp8")
    assert pool.options.prefix_caching is False
    assert not command.warnings
    words = write(model="deepseek-ai/DeepSeek-R1", plan=command.plan)
    assert words[:4] == ["trtllm-serve", "deepseek-ai/DeepSeek-R1", "--tp_size", "8"]
    path.write_text(yaml.safe_dump(yaml_options(command.plan)))
    again = read([str(path) if word == "trtllm.yaml" else word for word in words], version="1.2.1")
    assert again.plan == command.plan


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("- a\n", "not a mapping"),
        ("max_batch_size: many\n", "not a whole number"),
        ("kv_cache_config: {tokens_per_block: x}", "x"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        read(["trtllm-serve", "m/x", "--config", str(path)])


def test_hyphens_are_underscores() -> None:
    words = "trtllm-serve m/x --tp-size 2 --kv_cache_free_gpu_memory_fraction=0.5 --no_such 1"
    command = read(shlex.split(words))
    assert command.plan.pool.layout == Layout(tp=2)
    assert command.plan.pool.options.memory_fraction == 0.5
    assert command.unknown_flags == ("--no_such",)


def test_plans_that_it_cannot_run() -> None:
    for layout in (Layout(dcp=2, tp=8), Layout(tp=2, dp=2, ep=4)):
        with pytest.raises(InputError):
            write(model="m/x", plan=Plan(engine=EngineRef(name="tensorrt-llm"), pools=(Pool(layout=layout),)))
    with pytest.raises(InputError, match="every rank alone"):
        _start("deepseek-ai/DeepSeek-R1", "h200-sxm", Layout(tp=2, dp=4, ep=8))
    with pytest.raises(InputError, match="none of TensorRT-LLM's"):
        _start("llama-3.1-8b", "h100-sxm", kv_dtype="no-such")


def test_versions() -> None:
    assert for_version("0.20").backend == "tensorrt"
    assert for_version("1.2").backend == "pytorch"
    assert for_version(None, date="2023-11-01").version == "0.5"
    assert not for_version("7.0").known


def test_methods_that_it_does_not_load_are_refused() -> None:
    """NVIDIA/TensorRT-LLM llmapi/llm_utils.py, _update_from_hf_quant_config: NotImplementedError for quant_method awq."""
    said = tl.check(["trtllm-serve", "Qwen/Qwen2.5-7B-Instruct-AWQ"], gpu="h100-sxm")
    assert any("awq" in reason for reason in said.refused)
    assert not tl.check(["trtllm-serve", "nvidia/Qwen3-30B-A3B-NVFP4"], gpu="b200-sxm").refused
    assert not tl.check(["vllm", "serve", "Qwen/Qwen2.5-7B-Instruct-AWQ"], gpu="h100-sxm").refused
    assert not tl.fit(
        "llama-2-13b", "l40s", engine="tensorrt-llm", precision="awq"
    ).refused  # one that is only supposed to exist


def test_files_in_memory_that_the_host_shares_are_taken_for_used() -> None:
    """1.1.0rc3 on a DGX Spark: 5.95 GiB (86,720 tokens) are left for gpt-oss-120b, 49.3 of its files beside PyTorch's 63.5."""
    words = "docker run nvcr.io/nvidia/tensorrt-llm/release:1.1.0rc3 trtllm-serve openai/gpt-oss-120b"
    found = tl.check(f"{words} --max_batch_size 64 --max_num_tokens 8192", gpu="gb10").to_dict()
    pool = next(line["bytes"] for line in found["memory"]["items"] if line["name"] == "kv_cache")
    assert pool / GIB == pytest.approx(5.95, rel=0.12)
    assert any(one["code"] == "files-in-shared-memory" for one in found["warnings"])
    alone = tl.check(f"{words} --max_batch_size 64 --max_num_tokens 8192", gpu="h200-sxm").to_dict()
    assert not any(one["code"] == "files-in-shared-memory" for one in alone["warnings"])
