"""vLLM's command line read into a plan. Flag spellings as in vllm/engine/arg_utils.py and utils/argparse_utils.py, 0.33."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from trilemma.engines import get
from trilemma.engines.base import EngineCommand
from trilemma.engines.extract import extract
from trilemma.engines.vllm.flags import lookup, table
from trilemma.engines.vllm.read import read
from trilemma.errors import InputError
from trilemma.plans import Draft, Layout, ServeOptions


def command(line: str) -> EngineCommand:
    return read(shlex.split(line))


def options(flags: str) -> ServeOptions:
    return command(f"vllm serve m {flags}").plan.pool.options


def layout(flags: str) -> Layout:
    return command(f"vllm serve m {flags}").plan.pool.layout


def draft(flags: str) -> Draft | None:
    return command(f"vllm serve m {flags}").plan.pool.draft


def codes(line: str) -> set[str]:
    return {warning.code for warning in command(line).warnings}


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve org/model -tp 2",
        "vllm serve --model org/model --tensor-parallel-size=2",
        "vllm serve -tp=2 org/model",
        "python -m vllm.entrypoints.openai.api_server --model=org/model --tensor_parallel_size 2",
        "vllm/vllm-openai:latest --model org/model --tensor-parallel 2",
        "nvcr.io/nvidia/vllm:25.09-py3 serve org/model -tp 2",
    ],
)
def test_model_and_layout_in_every_spelling(line: str) -> None:
    found = command(line)
    assert (found.model, found.plan.pool.layout, found.unknown_flags) == ("org/model", Layout(tp=2), ())


def test_layout() -> None:
    assert layout("-tp 4 -pp 2 -dp 3 -dcp 2 -pcp 2") == Layout(tp=4, pp=2, dp=3, dcp=2, cp=2)
    assert layout("-tp 4 -dp 8 --enable-expert-parallel") == Layout(tp=4, dp=8, ep=32)
    assert layout("-dp 8 -ep") == Layout(dp=8, ep=8)
    assert layout("-tp 4 --enable-expert-parallel --no-enable-expert-parallel") == Layout(tp=4)


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--gpu-memory-utilization 0.85", "memory_fraction", 0.85),
        ("--gpu_memory_utilization=1", "memory_fraction", 1.0),
        ("--device-memory-utilization 0.5", "memory_fraction", 0.5),
        ("--kv-cache-memory-bytes 20G", "kv_cache_bytes", 20 * 2**30),
        ("--kv-cache-memory=5000000", "kv_cache_bytes", 5_000_000),
        ("--max-model-len 128k", "context", 128_000),
        ("--max-model-len 128K", "context", 131_072),
        ("--max-model-len 25.6k", "context", 25_600),
        ("--max-num-seqs 64", "max_seqs", 64),
        ("--max-num-batched-tokens 8K", "max_batched_tokens", 8192),
        ("--block-size 32", "block_size", 32),
        ("--dtype half", "dtype", "float16"),
        ("--dtype auto", "dtype", None),
        ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8_e4m3"),
        ("--kv-cache-dtype auto", "kv_dtype", None),
        ("-q awq_marlin", "quantization", "awq_marlin"),
        ("--enforce-eager", "eager", True),
        ("--no-enforce-eager", "eager", False),
        ("-O0", "eager", True),
        ("--enable-prefix-caching", "prefix_caching", True),
        ("--no-enable-prefix-caching", "prefix_caching", False),
        ("--disable-prefix-caching", "prefix_caching", False),
        ("--enable-chunked-prefill=False", "chunked_prefill", False),
        ("--enable-chunked-prefill False", "chunked_prefill", False),
        ("--cudagraph-capture-sizes 1 2 4", "cuda_graph_sizes", (1, 2, 4)),
        ("--cuda-graph-sizes 24", "cuda_graph_sizes", (1, 2, 4, 8, 16, 24)),
        ("""--compilation-config '{"cudagraph_capture_sizes": [1, 8]}'""", "cuda_graph_sizes", (1, 8)),
        ("--max-cudagraph-capture-size 20", "cuda_graph_sizes", (1, 2, 4, 8, 16)),
        ("--max-cudagraph-capture-size 288", "cuda_graph_sizes", (1, 2, 4, *range(8, 256, 8), 256, 272, 288)),
        ("--max-cudagraph-capture-size 0", "cuda_graph_sizes", ()),
        ("-cc.max_cudagraph_capture_size 8", "cuda_graph_sizes", (1, 2, 4, 8)),
        ("""-cc '{"cudagraph_mode": "NONE"}'""", "cuda_graph_sizes", ()),
        ("-cc.cudagraph_mode none", "cuda_graph_sizes", ()),
        ("--compilation-config.cudagraph_capture_sizes '[1,8]'", "cuda_graph_sizes", (1, 8)),
        ("""--limit-mm-per-prompt '{"image": 2, "video": 0}'""", "multimodal_limits", {"image": 2, "video": 0}),
        ("--limit-mm-per-prompt image=2,video=1", "multimodal_limits", {"image": 2, "video": 1}),
        ("--limit-mm-per-prompt.image 3", "multimodal_limits", {"image": 3}),
        ("--language-model-only", "text_only", True),
        ("--mamba-cache-mode align", "mamba_cache_mode", "align"),
        ("--cpu-offload-gb 7.5", "cpu_offload_bytes", int(7.5 * 2**30)),
    ],
)
def test_options(flags: str, field: str, value: object) -> None:
    assert getattr(options(flags), field) == value


@pytest.mark.parametrize(
    ("flags", "extra"),
    [
        ("--max-model-len auto", {"max-model-len": "auto"}),
        ("--max-model-len -1", {"max-model-len": "auto"}),
        ("--enable-lora --max-loras 4 --max-lora-rank 64", {"enable-lora": True, "max-loras": 4, "max-lora-rank": 64}),
        ("--swap-space 16", {}),
        ("--load-format dummy", {"load-format": "dummy"}),
        ("-O3", {"optimization-level": 3}),
        ("-O 2", {"optimization-level": 2}),
        ("-cc 3", {"compilation-config": {"level": 3}}),
        ("""-O '{"level": 3}'""", {"compilation-config": {"level": 3}}),
        ("-O.level 3", {"compilation-config": {"level": 3}}),
        ("""-cc '{"cudagraph_mode": "PIECEWISE"}'""", {"compilation-config": {"cudagraph_mode": "PIECEWISE"}}),
        ("--num-gpu-blocks-override 500", {"num-gpu-blocks-override": 500}),
        ("--hf-overrides.a.b 1 --hf-overrides.c x", {"hf-overrides": {"a": {"b": 1}, "c": "x"}}),
        ("--hf-overrides.a+ x,y --hf-overrides.a '[1]'", {"hf-overrides": {"a": ["x", "y", 1]}}),
        ("--data-parallel-size-local 2", {"data-parallel-size-local": 2}),
    ],
)
def test_options_without_a_field_are_kept_in_extra(flags: str, extra: dict[str, object]) -> None:
    assert options(flags).extra == extra


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("""--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""", Draft(method="mtp", tokens=2)),
        ("""-sc '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""", Draft(method="mtp", tokens=1)),
        (
            "--speculative-config.method eagle3 --speculative-config.model o/e --speculative-config.num_speculative_tokens 3",
            Draft(method="eagle3", tokens=3, model="o/e"),
        ),
        ("--spec-method ngram --spec-tokens 4", Draft(method="ngram", tokens=4)),
        ("--speculative-model '[ngram]' --num-speculative-tokens 5", Draft(method="ngram", tokens=5)),
        (
            "--speculative-model o/EAGLE-Llama --num-speculative-tokens 5",
            Draft(method="eagle", tokens=5, model="o/EAGLE-Llama"),
        ),
        ("--spec-model o/small --spec-tokens 5", Draft(method="draft", tokens=5, model="o/small")),
        ("", None),
    ],
)
def test_speculative_decoding(flags: str, expected: Draft | None) -> None:
    assert draft(flags) == expected


def test_other_keys_of_a_speculative_configuration_are_kept() -> None:
    found = options("""--speculative-config '{"method": "mtp", "num_speculative_tokens": 1, "quantization": "fp8"}'""")
    assert found.extra["speculative-config"] == {"quantization": "fp8"}
    assert "assumed-draft-tokens" in codes("""vllm serve m -sc '{"method": "mtp"}'""")


def test_config_file_is_read_and_the_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: org/model\ntensor-parallel-size: 4\nmax_model_len: 8192\nenforce-eager: true\n"
        "enable-prefix-caching: false\nserved-model-name: [a, b]\nspeculative-config:\n  method: mtp\n"
        "  num_speculative_tokens: 2\n"
    )
    found = command(f"vllm serve --config {path} -tp 2")
    pool = found.plan.pool
    assert (found.model, pool.layout.tp, pool.options.context) == ("org/model", 2, 8192)
    assert (pool.options.eager, pool.options.prefix_caching, pool.draft) == (True, False, Draft(method="mtp", tokens=2))
    assert found.facts["server"]["served-model-name"] == ["a", "b"]


def test_version_environment_and_devices_are_facts() -> None:
    line = (
        "docker run --gpus 2 -e VLLM_USE_V1=0 -e HF_TOKEN=hf_secret -e VLLM_API_KEY=secret vllm/vllm-openai:v0.19.0-cu130"
        " --model m -tp 4 --api-key sk-secret --port 8000"
    )
    found = get("vllm").read(extract([line])[1])
    assert found.plan.engine.version == "0.19.0"
    assert found.facts["environment"] == {"NVIDIA_VISIBLE_DEVICES": "0,1", "VLLM_USE_V1": "0"}
    assert found.facts["gpus_visible"] == 2
    assert found.facts["server"] == {"port": 8000}
    assert "secret" not in repr(found)
    assert [warning.code for warning in found.warnings] == ["too-few-visible"]


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai:latest", "vllm/vllm-openai:nightly", "nvcr.io/nvidia/vllm:25.09-py3"]
)
def test_tags_that_tell_no_version_of_vllm(image: str) -> None:
    assert command(f"{image} --model m").plan.engine.version is None


def test_unknown_flags_are_named_with_near_ones() -> None:
    found = command("vllm serve m --max-model-length 4096 --brand-new yes -tp 2")
    assert found.unknown_flags == ("--max-model-length", "--brand-new")
    assert found.plan.pool.layout.tp == 2
    assert "--max-model-len" in found.warnings[0].message


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("vllm serve m --swap-space 4", "removed-flag", "leave it out"),
        ("vllm serve m --max-seq-len-to-capture 4096", "removed-flag", "--max-cudagraph-capture-size"),
        ("vllm/vllm-openai:v0.8.5 --model m -dcp 2", "newer-flag", "first seen in 0.11.0"),
        ("vllm serve m --mamba-cache-mode align", "deprecated-flag", "no effect"),
        ("vllm serve m stray", "stray-word", "stray"),
        ("vllm serve m --enable-dbo --model-impl transformers", "not-counted", "--enable-dbo, --model-impl"),
        ("""vllm serve m --profiler-config.c x --profiler-config '{"a": 1}'""", "replaced-value", "dotted keys"),
    ],
)
def test_flags_of_other_versions_are_warned_of(line: str, code: str, says: str) -> None:
    (warning,) = command(line).warnings
    assert warning.code == code
    assert says in warning.message
    assert not command("vllm/vllm-openai:v0.8.5 --model m --swap-space 4").warnings


def test_an_old_command_is_read_for_its_version_and_can_be_written_for_a_newer_one() -> None:
    old = command("vllm/vllm-openai:v0.8.5 --model m --swap-space 4").plan.pool
    assert old.options.extra == {"swap-space": 4.0}
    new = command("vllm serve m --swap-space 4 --num-scheduler-steps 8 -tp 2")
    assert get("vllm").write(model=new.model, plan=new.plan) == ["vllm", "serve", "m", "--tensor-parallel-size", "2"]


def test_a_flag_that_went_and_came_back() -> None:
    flags = "--model m --disable-log-requests"
    assert not command(f"vllm/vllm-openai:v0.11.0 {flags}").warnings
    assert codes(f"vllm/vllm-openai:v0.24.0 {flags}") == {"removed-flag"}
    assert not command(f"vllm/vllm-openai:v0.33.0 {flags}").warnings


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--tensor-parallel-size six", "--tensor-parallel-size 'six' is not a whole number"),
        ("-tp 0", "-tp 0 is below 1"),
        ("-tp -2", "-tp -2 is below 1"),
        ("-tp 2.5", "whole number"),
        ("-tp 99999999", "at most 65536"),
        ("-tp", "-tp needs a value"),
        ("-tp --enforce-eager", "-tp needs a value"),
        ("--gpu-memory-utilization 95", "give 0.95"),
        ("--gpu-memory-utilization 0", "share"),
        ("--gpu-memory-utilization -0.1", "share"),
        ("--gpu-memory-utilization nan", "not a number"),
        ("--max-model-len 1.5K", "no decimals before the binary letter"),
        ("--max-model-len 0", "below 1"),
        ("--max-model-len long", "32K"),
        ("--max-num-seqs 0", "below 1"),
        ("--block-size 0", "below 1"),
        ("--cpu-offload-gb -1", "below 0"),
        ("--cudagraph-capture-sizes 0", "below 1"),
        ("--compilation-config nonsense", "JSON object"),
        ("--speculative-config mtp", "JSON object"),
        ("""-sc '{"num_speculative_tokens": 3}'""", "without method or model"),
        ("""-sc '{"method": "mtp", "num_speculative_tokens": 0}'""", "from 1"),
        ("""-sc '{"method": 5}'""", "not a name"),
        ("--hf-overrides x", "JSON object"),
        ("--limit-mm-per-prompt image", "JSON object"),
        ("""--limit-mm-per-prompt '{"image": -1}'""", "count"),
        ("--enable-prefix-caching=maybe", "neither true nor false"),
        ("--config /nowhere.yaml", "cannot be read: No such file"),
        ("--config", "--config needs a value"),
    ],
)
def test_bad_values_name_flag_value_and_remedy(flags: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        options(flags)
    assert says in str(error.value)


def test_a_model_is_needed() -> None:
    with pytest.raises(InputError, match="names no model"):
        read(["vllm", "serve", "-tp", "2"])
    with pytest.raises(InputError, match="shell variable"):
        read(["vllm", "serve", "$MODEL"])


def test_every_flag_is_found_by_its_own_name_and_the_table_is_sane() -> None:
    known = table()
    fields = {"model", "config", "draft", "compilation", "extra", "server", "secret"}
    assert len(known.flags) > 380
    assert sum(flag.removed is None for flag in known.flags.values()) > 315
    for name, flag in known.flags.items():
        given = lookup(f"--{name}")
        assert given is not None
        assert given.flag is flag
        assert flag.field.split(".")[0] in fields | {"layout", "options"}
        assert flag.since in known.versions
        assert flag.removed is None or flag.removed > flag.since
