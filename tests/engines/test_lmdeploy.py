"""LMDeploy: its share of memory by version and backend, blocks as its logs and documents print them, commands both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma import engines
from trilemma.cli.main import main
from trilemma.engines.base import StartUp
from trilemma.engines.extract import extract
from trilemma.engines.verdict import likeliest
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB, MIB

LMDEPLOY = engines.get("lmdeploy")


def start(
    model: str = "qwen3-8b", gpu: str = "a100-sxm4-80gb", *, layout: Layout | None = None, **more: Any
) -> StartUp:
    given = {name: more.pop(name) for name in ("version", "capacity_bytes", "free_bytes") if name in more}
    return LMDEPLOY.start_up(
        model=load_model(model), accelerator=find(gpu), layout=layout or Layout(), options=ServeOptions(**more), **given
    )


def test_blocks_of_a_log() -> None:
    """InternLM/lmdeploy issue 3411: InternVL2_5-8B (internlm2.5-7b and a tower of 0.3 B) on an A100 of 80 GB: block_size = 8.000
    MB, max_block_count = 6214, some 50 GB."""
    found = start("internlm2.5-7b", version="0.7.2", context=8192)
    assert float(found.pool.bytes_per_token_per_gpu) * found.pool.block_size == 8 * MIB
    tower = 0.8 * 0.304e9 * 2 / (8 * MIB)
    assert float(found.pool.blocks) - tower == pytest.approx(6214, rel=0.06)


def test_a_share_of_the_free_memory_as_the_documents_reckon_it() -> None:
    """docs/zh_cn/inference/turbomind_config.md: 13B on 80 GB leaves (80 − 26) · 0.8 = 43.2 GB; before 0.2.2 0.5 of 80."""
    card = 80e9
    weights = float(start("llama-2-13b").ledger["weights"].bytes)
    context = float(start("llama-2-13b").ledger["context"].bytes)
    now = start("llama-2-13b", capacity_bytes=card, version="0.4.0")
    assert weights == pytest.approx(26e9, rel=0.01)
    assert float(now.pool.available_bytes) == pytest.approx(0.8 * (card - weights - context), rel=0.002)
    assert float(now.pool.available_bytes) == pytest.approx(43.2e9, rel=0.03)
    before = start("llama-2-13b", capacity_bytes=card, version="0.2.1")
    assert float(before.pool.available_bytes) == pytest.approx(0.5 * card, rel=0.002)


@pytest.mark.parametrize(
    ("version", "gpu", "batch"),
    [("0.5.0", "a100-sxm4-80gb", 128), ("0.6.0", "a100-sxm4-80gb", 256), ("0.8.0", "h100-sxm", 512), ("0.10.0", "h100-sxm", 1024),
     ("0.16.0", "h200-sxm", 1024), ("0.16.0", "l40s", 128), ("0.16.0", "910b", 256)],
)  # fmt: skip
def test_sequences_by_version_and_card(version: str, gpu: str, batch: int) -> None:
    """lmdeploy/utils.py, get_max_batch_size."""
    assert start(gpu=gpu, version=version).max_seqs == batch


def test_the_pytorch_backend_sets_memory_aside() -> None:
    """executor/base.py: (max_prefill_token_num + 2 · sequences) · vocabulary · 2 from 0.10 on, tokens · vocabulary · 7 before."""
    vocab = load_model("qwen3-8b").vocab
    now = start(version="0.12.0", extra={"backend": "pytorch"}, max_seqs=256)
    assert float(now.ledger["workspace"].bytes) == (8192 + 512) * vocab * 2
    before = start(version="0.8.0", extra={"backend": "pytorch"}, max_seqs=256)
    assert float(before.ledger["workspace"].bytes) == 8192 * vocab * 7
    turbomind = start(version="0.12.0", max_seqs=256)
    assert turbomind.ledger.get("workspace") is None
    assert turbomind.ledger.get("cuda_graphs") is None
    assert float(now.ledger["cuda_graphs"].bytes) > 0
    gap = float(turbomind.pool.available_bytes) - float(now.pool.available_bytes)
    assert gap == pytest.approx(0.8 * (8192 + 512) * vocab * 2, rel=0.01)


@pytest.mark.parametrize(("policy", "bits"), [("int8", 8 + 32 / 128), ("int4", 4 + 32 / 128), (None, 16)])
def test_integers_carry_a_scale_and_a_zero_a_vector(policy: str | None, bits: float) -> None:
    """docs/en/quantization/kv_quant.md: per head and token, asymmetric. 36 layers, 8 heads of 128, K and V."""
    rate = float(start(kv_dtype=policy).pool.bytes_per_token_per_gpu)
    assert rate == pytest.approx(36 * 8 * 128 * 2 * bits / 8)


def test_turbomind_has_no_fp8_cache() -> None:
    with pytest.raises(InputError, match="--quant-policy 16: TurboMind caches in 16 bits"):
        start(kv_dtype="fp8_e4m3")
    assert start(kv_dtype="fp8_e4m3", extra={"backend": "pytorch"}).kv_format == "fp8_e4m3"
    with pytest.raises(InputError, match="'42' is none that is known"):
        LMDEPLOY.read(["lmdeploy", "serve", "api_server", "m", "--quant-policy", "42"])


def test_a_whole_number_counts_blocks() -> None:
    found = start(memory_fraction=50.0, version="0.9.0")
    assert (found.pool.blocks, found.pool.tokens) == (50, 3200)
    with pytest.raises(InputError, match="neither a share below 1 nor a number"):
        LMDEPLOY.read(["lmdeploy", "serve", "api_server", "m", "--cache-max-entry-count", "1.5"])


def test_layers_are_not_cut() -> None:
    with pytest.raises(InputError, match="not by layers"):
        start(layout=Layout(pp=2))
    with pytest.raises(InputError, match="turbomind or pytorch"):
        start(extra={"backend": "vllm"})


def test_ranks_share_what_a_card_holds() -> None:
    one, two = start("qwen3-32b"), start("qwen3-32b", layout=Layout(tp=2))
    assert float(two.ledger["weights"].bytes) == pytest.approx(float(one.ledger["weights"].bytes) / 2, rel=0.01)
    assert float(two.pool.bytes_per_token_per_gpu) * 2 == float(one.pool.bytes_per_token_per_gpu)


def test_a_share_too_large_runs_out_when_it_serves() -> None:
    assert likeliest(start(memory_fraction=0.8, context=8192))[0] == "ok"
    assert likeliest(start("qwen3-14b", "rtx-3090", memory_fraction=0.8))[0] == "oom_load"
    assert likeliest(start("qwen3-8b", "rtx-3090", memory_fraction=0.9, max_batched_tokens=65536))[0] in (
        "oom_capture",
        "oom_runtime",
    )


def test_a_command_both_ways() -> None:
    line = (
        "lmdeploy serve api_server Qwen/Qwen3-32B --tp 2 --session-len 32768 --max-batch-size 64 --max-prefill-token-num 4096"
        " --cache-max-entry-count 0.7 --quant-policy 8 --dtype bfloat16 --enable-prefix-caching --backend turbomind"
    )
    words = line.split()
    engine, own = extract(["docker run --gpus all openmmlab/lmdeploy:v0.9.2-cu12 " + " ".join(words)])
    assert engine == "lmdeploy"
    command = LMDEPLOY.read(own, version="0.9.2")
    options = command.plan.pool.options
    assert (command.model, command.plan.pool.layout.tp, options.kv_dtype) == ("Qwen/Qwen3-32B", 2, "int8")
    assert (options.context, options.max_seqs, options.memory_fraction) == (32768, 64, 0.7)
    assert command.unknown_flags == ()
    again = LMDEPLOY.read(LMDEPLOY.write(model=command.model, plan=command.plan), version="0.9.2")
    assert again.plan == replace(
        command.plan, pools=(replace(command.plan.pool, options=replace(options, dtype="bfloat16")),)
    )
    assert LMDEPLOY.read(["openmmlab/lmdeploy:v0.9.2-cu12", *words]).plan.engine.version == "0.9.2"


def test_write_refuses_what_it_does_not_run() -> None:
    plan = Plan(engine=EngineRef(name="lmdeploy"), pools=(Pool(layout=Layout(pp=2)),))
    with pytest.raises(InputError, match="not by layers"):
        LMDEPLOY.write(model="m", plan=plan)


def test_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [
        "lmdeploy",
        "serve",
        "api_server",
        "Qwen/Qwen3-32B",
        "--tp",
        "2",
        "--session-len",
        "32768",
        "--quant-policy",
        "8",
    ]
    assert main(["check", "--gpu", "a100-sxm4-80gb:2", "--json", "--", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    pool = next(line for line in found["memory"]["items"] if line["name"] == "kv_cache")
    assert 30 * GIB < pool["bytes"] < 40 * GIB
    common = [
        "plan",
        "qwen3-8b",
        "--gpu",
        "l40s:2",
        "--engine",
        "lmdeploy@0.12.0",
        "--serve",
        "1024/256",
        "--concurrency",
        "8",
    ]
    saved = tmp_path / "plan.json"
    assert main([*common, "--json"]) == 0
    saved.write_text(capsys.readouterr().out)
    assert main(["export", str(saved), "--to", "lmdeploy", "-o", str(tmp_path / "out")]) == 0
    text = "".join(path.read_text() for path in sorted((tmp_path / "out").rglob("*")) if path.is_file())
    assert "lmdeploy serve api_server" in text
    assert "openmmlab/lmdeploy:v0.12.0-cu12" in text


@pytest.mark.parametrize("engine", ["lmdeploy", "tensorrt-llm"])
def test_files_that_no_reader_of_it_takes_are_refused(engine: str) -> None:
    """lmdeploy/cli/utils.py, --model-format: hf, awq, gptq, compressed-tensors, fp8, mxfp4."""
    found = tl.fit("qwen3-8b", "rtx-4090", engine=engine, precision="q4_k_m")
    assert not found.fits
    assert ": refused, " in repr(found)
    assert "does not load checkpoints quantised by gguf; take " in str(found)
    assert tl.fit("qwen3-8b", "rtx-4090", engine=engine, precision="awq").fits
    with pytest.raises(InputError, match="does not load checkpoints quantised by gguf"):
        tl.plan("qwen3-8b", "rtx-4090", engine=engine, precision="q4_k_m", isl=512, osl=128)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rope-scaling-factor", "nan"), "'nan' is not a number"),
        (("--max-concurrent-requests", "nan"), "'nan' is not a whole number"),
        (("--cudagraph-capture-batch-sizes", "1", "nan"), "'nan' is not a whole number"),
    ],
)
def test_options_that_are_numbers_take_no_words(words: tuple[str, ...], told: str) -> None:
    """lmdeploy/cli/utils.py: type=float, type=int, and nargs='+' of integers."""
    with pytest.raises(InputError, match=told):
        tl.check(["lmdeploy", "serve", "api_server", "Qwen/Qwen3-8B", *words], gpu="h100-sxm")


@pytest.mark.parametrize(("flag", "value"), [("--model-format", "nan"), ("--role", "hybrid"), ("--backend", "vllm")])
def test_values_outside_a_closed_list_are_refused_as_the_engine_refuses_them(flag: str, value: str) -> None:
    """lmdeploy/cli/utils.py, choices: 'Hybrid' is one of --role, 'hybrid' is not."""
    found = tl.check(["lmdeploy", "serve", "api_server", "Qwen/Qwen3-8B", flag, value], gpu="h100-sxm")
    assert not found.fits
    assert f"takes no {flag} {value}" in str(found)
