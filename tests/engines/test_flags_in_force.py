"""A flag that a version calls otherwise keeps its value there, and a value that it does not take is an answer: no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma import engines
from trilemma.cli.main import main
from trilemma.commands.flag_values import FlagValues
from trilemma.engines.in_force import name_at, refusals
from trilemma.plans import Draft

TABLES = ("vllm", "sglang", "llama.cpp")
HEADS = {
    "vllm": "vllm serve m/x",
    "sglang": "python3 -m sglang.launch_server --model-path m/x",
    "llama.cpp": "llama-server -m x.gguf",
}


def _read(engine: str, words: str, version: str | None = None) -> Any:
    return engines.get(engine).read(f"{HEADS[engine]} {words}".split(), version=version)


def _pool(engine: str, words: str, version: str | None = None) -> Any:
    return _read(engine, words, version).plan.pool


@pytest.mark.parametrize("engine", TABLES)
def test_every_new_name_is_a_flag(engine: str) -> None:
    table = engines.get(engine).flags()
    newest = table.versions[-1]
    for flag in table.flags.values():
        if flag.renamed_to is None:
            continue
        today = name_at(flag, table, newest)
        if today is None:  # its successor is gone too
            assert table.flags[flag.renamed_to].gone_at(newest), flag.name
            continue
        target = table.flags[today.partition("=")[0].partition(".")[0]]
        assert target.exists_at(newest), flag.name
        if "=" in today:
            assert not flag.takes_value, flag.name
            assert table.values.takes(target.name, today.partition("=")[2], newest), flag.name
        elif "." in today:
            assert target.kind == "json", flag.name


@pytest.mark.parametrize(
    ("engine", "words", "name", "value"),
    [
        ("sglang", "--cuda-graph-max-bs 16", "cuda-graph-max-bs-decode", 16),
        ("sglang", "--piecewise-cuda-graph-max-tokens 4096", "cuda-graph-max-bs-prefill", 4096),
        ("sglang", "--mamba-scheduler-strategy extra_buffer", "mamba-radix-cache-strategy", "extra_buffer"),
        ("sglang", "--enable-deepep-moe", "moe-a2a-backend", "deepep"),
        ("sglang", "--enable-flashinfer-trtllm-moe", "moe-runner-backend", "flashinfer_trtllm"),
        ("sglang", "--disable-piecewise-cuda-graph", "cuda-graph-backend-prefill", "disabled"),
        ("sglang", "--nsa-prefill fa3", "dsa-prefill-backend", "fa3"),
        ("vllm", '--rope-scaling {"rope_type":"yarn","factor":4.0}', "hf-overrides",
         {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("vllm", "--rope-theta 1000000", "hf-overrides", {"rope_theta": 1000000.0}),
        ("vllm", "--num-redundant-experts 32 --eplb-window-size 100", "eplb-config",
         {"num_redundant_experts": 32, "window_size": 100}),
        ("vllm", "--worker-use-ray", "distributed-executor-backend", "ray"),
        ("vllm", "--disable-mm-preprocessor-cache", "mm-processor-cache-gb", 0.0),
        ("llama.cpp", "--no-mmap", "load-mode", "none"),
        ("llama.cpp", "--no-context-shift", "context-shift", False),
    ],
)  # fmt: skip
def test_values_of_renamed_flags_stay_in_force(engine: str, words: str, name: str, value: Any) -> None:
    assert _pool(engine, words).options.extra[name] == value


@pytest.mark.parametrize(
    ("engine", "words", "draft"),
    [
        ("vllm", "--speculative-model org/small --num-speculative-tokens 5", Draft(method="draft", tokens=5, model="org/small")),
        ("vllm", "--speculative-model [ngram] --num-speculative-tokens 3 --ngram-prompt-lookup-max 4",
         Draft(method="ngram", tokens=3)),
        ("llama.cpp", "-md draft.gguf --draft-max 8", Draft(method="draft", tokens=8, model="draft.gguf")),
    ],
)  # fmt: skip
def test_drafts_of_older_flags(engine: str, words: str, draft: Draft) -> None:
    assert _pool(engine, words).draft == draft


@pytest.mark.parametrize(("engine", "words", "sizes"), [
    ("vllm", "--cuda-graph-sizes 1 2 4 8", (1, 2, 4, 8)),
    ("sglang", "--cuda-graph-bs 1 2 4", (1, 2, 4)),
])  # fmt: skip
def test_graph_sizes_of_older_flags(engine: str, words: str, sizes: tuple[int, ...]) -> None:
    assert _pool(engine, words).options.cuda_graph_sizes == sizes


def test_the_flag_that_is_given_itself_wins() -> None:
    pool = _pool("sglang", "--cuda-graph-max-bs 16 --cuda-graph-max-bs-decode 32")
    assert pool.options.extra["cuda-graph-max-bs-decode"] == 32
    pool = _pool("vllm", '--num-redundant-experts 8 --eplb-config {"num_redundant_experts":16}')
    assert pool.options.extra["eplb-config"] == {"num_redundant_experts": 16}


def test_old_versions_keep_their_own_names_and_new_names_reach_them() -> None:
    old = _read("sglang", "--cuda-graph-max-bs 16", "0.5.5")
    assert old.plan.pool.options.extra == {"cuda-graph-max-bs": 16}
    assert not refusals(old)
    newer = _read("sglang", "--cuda-graph-max-bs-decode 16", "0.5.5")
    assert newer.plan.pool.options.extra == {"cuda-graph-max-bs": 16}
    assert "use --cuda-graph-max-bs" in refusals(newer)[0]


def test_renamed_flag_gives_the_memory_of_its_new_name(capsys: pytest.CaptureFixture[str]) -> None:
    """R1 with small graphs: without the value, graphs of the default batch do not fit beside 92 % of the card."""
    head = "check --gpu h200-sxm:8 -- python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8"
    flags = "--mem-fraction-static 0.92"
    assert main(f"{head} {flags} --cuda-graph-max-bs 16".split()) == 0
    renamed = capsys.readouterr().out
    assert main(f"{head} {flags} --cuda-graph-max-bs-decode 16".split()) == 0
    pool = [line for line in renamed.splitlines() if "tokens" in line and "KV" in line]
    assert pool
    assert pool[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("engine", "words", "says"),
    [
        ("vllm", "--kv-cache-dtype int4", "takes no --kv-cache-dtype int4; it takes auto, float16, bfloat16, fp8"),
        ("vllm", "--dtype int8", "it takes auto, half, float16, bfloat16, float, float32"),
        ("vllm", "--quantization fp6", "--quantization fp6"),
        ("vllm", "--load-format torch", "--load-format torch"),
        ("vllm", "--all2all-backend nvshmem", "deepep_low_latency"),
        ("sglang", "--kv-cache-dtype fp8", "fp8_e5m2, fp8_e4m3"),
        ("sglang", "--attention-backend flash_attn", "fa3"),
        ("sglang", "--moe-a2a-backend nccl", "deepep"),
        ("llama.cpp", "--cache-type-k fp8", "q8_0"),
        ("llama.cpp", "-ctv q6_k", "iq4_nl"),
        ("llama.cpp", "--split-mode column", "none, layer, row"),
    ],
)  # fmt: skip
def test_values_no_version_takes_are_refused(engine: str, words: str, says: str) -> None:
    refused = refusals(_read(engine, words))
    assert len(refused) == 1
    assert says in refused[0]


@pytest.mark.parametrize(
    ("engine", "version", "words", "is_refused"),
    [
        # CacheDType: bfloat16 from 0.15, int4_per_token_head from 0.28 (0.24 has it not).
        ("vllm", "0.10.0", "--kv-cache-dtype bfloat16", True),
        ("vllm", "0.15.0", "--kv-cache-dtype bfloat16", False),
        ("vllm", "0.24.0", "--kv-cache-dtype int4_per_token_head", True),
        ("vllm", "0.26.0", "--kv-cache-dtype int4_per_token_head", False),  # between two versions read
        ("vllm", "0.33.0", "--load-format gguf", True),
        ("vllm", "0.15.0", "--load-format gguf", False),
        ("vllm", "0.33.0", "--attention-backend flashinfer", False),  # capitals do not matter
        ("vllm", None, "--load-format gguf", False),  # gone in the newest, and no version is stated
        ("vllm", "0.99.0", "--kv-cache-dtype int2", False),  # newer than all that was read
        ("sglang", "0.5.23", "--kv-cache-dtype fp4_e2m1", True),
        ("sglang", "0.5.10", "--kv-cache-dtype fp4_e2m1", False),
        ("sglang", "0.5.23", "--speculative-algorithm DFLASH", False),  # open since 0.5.14
        ("llama.cpp", "b6170", "--split-mode tensor", True),
        ("llama.cpp", "b10800", "--split-mode tensor", False),
    ],
)  # fmt: skip
def test_values_by_version(engine: str, version: str | None, words: str, is_refused: bool) -> None:
    assert bool(refusals(_read(engine, words, version))) is is_refused


def test_refused_value_is_an_answer_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = "check --gpu h100-sxm -- vllm serve Qwen/Qwen3-8B --kv-cache-dtype int4"
    assert main(words.split()) == 1
    assert "takes no --kv-cache-dtype int4" in capsys.readouterr().out


def test_between_versions_read_a_value_of_either_is_believed() -> None:
    values = FlagValues(versions=((1, 0), (2, 0), (3, 0)), rows={"x": (((1, 0), ("a",)), ((3, 0), ("b",)))})
    assert values.at("x", (1, 0)) == ("a",)
    assert values.at("x", (2, 0)) == ("a",)
    assert values.at("x", (2, 5)) == ("a", "b")
    assert values.at("x", (3, 0)) == values.at("x", (4, 0)) == ("b",)
    assert values.at("y", (1, 0)) == ()


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        ("vllm", "int4"), ("vllm", "q4_0"), ("sglang", "int8"), ("sglang", "q8_0"), ("tensorrt-llm", "int4"),
        ("tensorrt-llm", "fp8_e5m2"), ("llama.cpp", "fp8"), ("llama.cpp", "nvfp4"),
    ],
)  # fmt: skip
def test_no_command_is_written_with_a_value_that_its_engine_does_not_take(
    engine: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """fit wrote --kv-cache-dtype int4 for vLLM, which stops at it."""
    words = ["fit", "qwen3-8b", "--gpu", "h100-sxm:1", "--engine", engine, "--kv-dtype", word]
    if engine == "llama.cpp":
        words += ["--precision", "Q4_K_M"]
    assert main(words) == 2
    assert word in capsys.readouterr().err


def test_formats_of_the_cache_are_called_as_the_engine_calls_them() -> None:
    for engine, word in (("vllm", "bfloat16"), ("sglang", "bf16")):
        answer = tl.fit("qwen3-8b", "h100-sxm:1", engine=engine, kv_dtype="bf16")
        assert answer.command is not None
        assert answer.command.endswith(f"--kv-cache-dtype {word}")


def test_a_file_of_options_is_held_to_the_same_values(tmp_path: Path) -> None:
    """TensorRT-LLM's loader raises for formats beside auto, fp8 and nvfp4 (model_loader.py, _VALID_KV_CACHE_DTYPES)."""
    for word, refused in (("int4", True), ("nvfp4", False)):
        path = tmp_path / f"{word}.yaml"
        path.write_text(f"kv_cache_config:\n  dtype: {word}\n")
        answer = tl.check(f"trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options {path}", gpu="b200-sxm:1")
        assert bool(answer.refused) is refused
        assert answer.question.plan.pool.options.kv_dtype == (None if refused else word)
