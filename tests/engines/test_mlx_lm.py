"""MLX-LM: peak memory and speeds of its own benchmark, its checkpoints, commands both ways, the working set of a Mac."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trilemma import engines
from trilemma.cli.main import main
from trilemma.engines.base import StartUp
from trilemma.engines.extract import extract
from trilemma.engines.verdict import likeliest
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.files import model_from_path
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB

MLX = engines.get("mlx-lm")
BENCHMARK = [
    # ml-explore/mlx-lm@d78bf58e mlx_lm/BENCHMARKS.md, M4 Max of 64 GB, 2,048 + 128 tokens: GB, prompt and generation tokens/s
    ("Qwen/Qwen3-4B-Instruct-2507", 9.02, 1780.63, 52.47),
    ("mlx-community/Qwen3-4B-Instruct-2507-8bit", 5.254, 1606.57, 86.91),
    ("mlx-community/Qwen3-4B-Instruct-2507-6bit", 4.25, 1576.73, 104.68),
    ("mlx-community/Qwen3-4B-Instruct-2507-5bit-g32", 4.00, 1570.8, 110.29),
    ("mlx-community/Qwen3-4B-Instruct-2507-4bit", 3.35, 1622.27, 134.52),
    ("mlx-community/Qwen3-30B-A3B-Instruct-2507-8bit", 33.46, 1719.47, 83.16),
    ("mlx-community/Qwen3-30B-A3B-Instruct-2507-5bit", 22.01, 1664.24, 101.0),
]


def start(model: str = "mlx-community/Qwen3-4B-Instruct-2507-4bit", gpu: str = "m4-max-64gb", **more: Any) -> StartUp:
    given = {name: more.pop(name) for name in ("version", "capacity_bytes") if name in more}
    return MLX.start_up(
        model=load_model(model),
        accelerator=find(gpu),
        layout=more.pop("layout", Layout()),
        options=ServeOptions(**more),
        **given,
    )


@pytest.mark.parametrize(("model", "peak_gb", "_prompt", "_generation"), BENCHMARK)
def test_peak_memory_of_the_benchmark(model: str, peak_gb: float, _prompt: float, _generation: float) -> None:
    found = start(model, context=2176, version="0.28.2")
    told = float(found.ledger.total()) - float(found.ledger["context"].bytes)
    assert told / 1e9 == pytest.approx(peak_gb, rel=0.035)


@pytest.mark.parametrize(("model", "_peak_gb", "prompt", "generation"), BENCHMARK)
def test_speeds_of_the_benchmark(
    model: str, _peak_gb: float, prompt: float, generation: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shares of this engine were fitted to these figures: generation within a tenth, prompts within a seventh."""
    words = ["fit", model, "--gpu", "m4-max-64gb", "--engine", "mlx-lm@0.28.2", "--isl", "2048", "--osl", "128"]
    assert main([*words, "--concurrency", "1", "--json"]) == 0
    speed = json.loads(capsys.readouterr().out)["speed"]
    assert 1000 / speed["tpot_ms"]["value"] == pytest.approx(generation, rel=0.10)
    assert 2048 / (speed["ttft_ms"]["value"] / 1000) == pytest.approx(prompt, rel=0.14)


def test_a_checkpoint_of_mlx_holds_a_scale_and_a_bias_for_each_group() -> None:
    """4 bits in groups of 64 are 4.5, in groups of 32 5.0, embeddings and head among them."""
    plain = load_model("qwen3-8b")
    for bits, group, stored in ((4, 64, 4.5), (4, 32, 5.0), (8, 64, 8.5), (6, 64, 6.5)):
        name = f"mlx-community/Qwen3-8B-{bits}bit" + ("" if group == 64 else f"-g{group}")
        model = load_model(name)
        matrices = sum(t.bytes for t in model.tensors if len(t.shape) > 1)
        assert matrices / sum(t.bytes for t in plain.tensors if len(t.shape) > 1) == pytest.approx(
            stored / 16, rel=1e-3
        )


@pytest.mark.parametrize(
    ("stated", "gib"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, 4.29),
        ({"quantization_config": {"group_size": 64, "bits": 4, "mode": "affine"}}, 4.29),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, 4.05),
        ({"quantization": {"group_size": 64, "bits": 4, "lm_head": False}}, 5.12),
    ],
)
def test_configurations_of_mlx(tmp_path: Path, stated: dict[str, Any], gib: float) -> None:
    """mlx_lm/utils.py, save_config: no method, a group and bits; modules by name have their own, false keeps them."""
    from trilemma.models import catalogue

    plain = {key: value for key, value in catalogue.config("qwen3-8b").items() if not key.startswith("_")}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**plain, **stated}))
    model = model_from_path(path, name="mine")
    assert model.quantization is not None
    assert model.quantization.method == "mlx"
    assert sum(t.bytes for t in model.tensors) / GIB == pytest.approx(gib, abs=0.01)


def test_other_toolkits_checkpoints_are_refused() -> None:
    with pytest.raises(InputError, match=r"checkpoints that mlx_lm\.convert made"):
        start("Qwen/Qwen3-8B-AWQ")
    with pytest.raises(InputError, match="one machine"):
        start(layout=Layout(tp=2))


def test_a_server_holds_one_reader_and_more_where_told() -> None:
    one, eight = start(context=8192), start(context=8192, max_seqs=8)
    assert float(eight.ledger["kv_cache"].bytes) == 8 * float(one.ledger["kv_cache"].bytes)
    assert float(one.ledger["kv_cache"].bytes) == 8192 * 147456
    kept = start(context=8192, extra={"prompt-cache-bytes": "4G"})
    assert float(kept.ledger["workspace"].bytes) == 4e9
    with pytest.raises(InputError, match="is not a size such as 4G"):
        start(extra={"prompt-cache-bytes": "lots"})


def test_a_quantised_cache_begins_at_five_thousand_tokens() -> None:
    """mlx_lm/generate.py, DEFAULT_QUANTIZED_KV_START; groups of 64 with scale and bias."""
    assert start(context=4096, extra={"kv-bits": 8}).kv_format == "bf16"
    long = start(context=8192, extra={"kv-bits": 8})
    assert float(long.pool.bytes_per_token_per_gpu) == 147456 * 8.5 / 16


def test_what_does_not_fit_says_how_the_working_set_is_raised() -> None:
    found = start("mlx-community/Qwen3-30B-A3B-Instruct-2507-8bit", "m3-pro-36gb", context=4096)
    assert likeliest(found)[0] == "oom_load"
    assert any("iogpu.wired_limit_mb" in one.message for one in found.warnings)
    assert not any("iogpu" in one.message for one in start().warnings)


@pytest.mark.parametrize(
    "line",
    [
        "mlx_lm.server --model mlx-community/Qwen3-8B-4bit --port 8080 --decode-concurrency 4",
        "python -m mlx_lm.server --model mlx-community/Qwen3-8B-4bit --decode-concurrency 4",
        "python3 -m mlx_lm server --model mlx-community/Qwen3-8B-4bit --decode-concurrency 4 --log-level DEBUG",
    ],
)
def test_commands_read(line: str) -> None:
    engine, words = extract([line])
    command = MLX.read(words)
    assert (engine, command.model, command.plan.pool.options.max_seqs) == ("mlx-lm", "mlx-community/Qwen3-8B-4bit", 4)
    assert command.unknown_flags == ()


def test_a_generator_answers_one_request() -> None:
    command = MLX.read(
        ["mlx_lm.generate", "--model", "m/x-4bit", "--prompt", "hello", "--max-kv-size", "4096", "--kv-bits", "4"]
    )
    options = command.plan.pool.options
    assert (options.max_seqs, options.context, options.extra["kv-bits"]) == (1, 4096, 4)


def test_read_is_the_inverse_of_write() -> None:
    options = ServeOptions(max_seqs=4, max_batched_tokens=1024, extra={"prompt-cache-size": 2})
    plan = Plan(engine=EngineRef(name="mlx-lm"), pools=(Pool(options=options),))
    assert MLX.read(MLX.write(model="mlx-community/Qwen3-8B-4bit", plan=plan)).plan == plan
    with pytest.raises(InputError, match="caches in 16 bits"):
        MLX.write(
            model="m",
            plan=Plan(engine=EngineRef(name="mlx-lm"), pools=(Pool(options=ServeOptions(kv_dtype="int8_g64_zp16")),)),
        )


def test_rows_of_its_benchmark_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "rows.csv"
    head = "id,model,precision_weights,gpu,gpus,engine,version,isl,osl,concurrency_or_batch,metric,value,tier"
    card = "Apple M4 Max 64GB (40-core GPU assumed, 546 GB/s)"
    row = f'a,mlx-community/Qwen3-4B-Instruct-2507-4bit,q4,"{card}",1,mlx-lm,0.28.2,2048,128,1'
    table.write_text(f"{head}\n{row},decode_tok_s,134.52,B\n{row.replace('a,', 'b,', 1)},prefill_tok_s,1622.27,B\n")
    assert main(["validate", str(table), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["decode_tok_s"]["median_ape"] < 0.06
    assert metrics["prefill_tok_s"]["median_ape"] < 0.06
