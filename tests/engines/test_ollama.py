"""Ollama: what public logs print, defaults by version, names of the library, Modelfiles that mean no good."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma import engines
from trilemma.cli.main import main
from trilemma.engines import traits_of
from trilemma.engines.base import StartUp
from trilemma.engines.extract import extract
from trilemma.engines.ollama.modelfile import parse
from trilemma.engines.ollama.placement import Sizes, batch_that_fits, graph_bytes, layers_by_estimate
from trilemma.engines.ollama.tags import tag_of, weights_of
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB, MIB
from trilemma.timing.coefficients import kernels_of

OLLAMA = engines.get("ollama")


def start(
    model: str, gpu: str, *, free: float | None = None, cards: int = 1, version: str | None = None, **options: Any
) -> StartUp:
    return OLLAMA.start_up(
        model=load_model(model), accelerator=find(gpu), layout=Layout(pp=cards), options=ServeOptions(**options),
        free_bytes=None if free is None else free * GIB, version=version,
    )  # fmt: skip


def said(found: StartUp) -> str:
    return "; ".join(one.message for one in found.warnings)


@pytest.mark.parametrize(
    ("model", "gpu", "free", "cards", "version", "context", "layers"),
    [
        # ollama/ollama issue 5913 (2024-07-24): layers.model=81 layers.offload=43, 24.0 GiB available, --ctx-size 2048
        ("qwen2.5-72b:q4_k_s", "rx-7900-xtx", 24.0, 1, "0.2.8", 2048, "43 layers of 81"),
        # issue 9181 (2025-02-18): layers.offload=44 layers.split=11,11,11,11 of 81, four times 22.0 GiB, num_ctx 64000
        ("llama-3.1-70b:q8_0", "rtx-3090", 22.0, 4, "0.5.11", 64000, "44 layers of 81"),
        # issue 10810 (2025-05-22): layers.model=95 layers.offload=65 layers.split=13,13,13,13,13, five times 23.2 GiB
        ("qwen3-235b-a22b:q4_k_m", "rtx-3090", 23.2, 5, "0.7.0", None, "65 layers of 95"),
    ],
)
def test_layers_that_public_logs_print(
    model: str, gpu: str, free: float, cards: int, version: str, context: int | None, layers: str
) -> None:
    found = start(model, gpu, free=free, cards=cards, version=version, context=context)
    assert layers in said(found)
    assert found.max_seqs == 1  # more requests at once are tried first, and do not fit


def test_graphs_as_logs_print_them() -> None:
    """memory.graph.full and .partial of logs: 560.0 and 677.5 MiB of Llama 3 8B at 8,192, 313.0 MiB and 1.3 GiB of Qwen2 72B at
    2,048 (issue 5913), 8.2 GiB of Llama 70B at 64,000 (9181), 2.0 GiB of Qwen3 235B at 4,096 (10810)."""
    llama = Sizes.of(load_model("llama-3.1-8b"), cells=8192, batch=512)
    assert [one / MIB for one in graph_bytes("llama", llama, 0)] == pytest.approx([560.0, 677.5], abs=0.05)
    qwen = Sizes.of(load_model("qwen2.5-72b"), cells=2048, batch=512)
    full, partial = graph_bytes("qwen2", qwen, 0)
    assert full / MIB == pytest.approx(313.0, abs=0.05)
    assert partial / GIB == pytest.approx(1.26, abs=0.05)
    large = Sizes.of(load_model("llama-3.1-70b"), cells=64000, batch=512)
    assert graph_bytes("llama", large, 0)[1] / GIB == pytest.approx(8.2, abs=0.06)
    other = Sizes.of(load_model("qwen3-235b-a22b"), cells=4096, batch=512)
    assert graph_bytes("qwen3_moe", other, 752 * MIB)[0] / GIB == pytest.approx(1.96, abs=0.01)


def test_an_estimate_goes_round_the_cards_and_leaves_out_the_output_first() -> None:
    assert layers_by_estimate([1.0] * 4, 1.0, (1.0, 2.0), [9.0], aside=0.5) == (4, True)
    assert layers_by_estimate([1.0] * 4, 1.0, (1.0, 2.0), [8.0], aside=0.5) == (4, False)
    assert layers_by_estimate([1.0] * 4, 1.0, (1.0, 2.0), [6.6], aside=0.5) == (3, False)
    assert layers_by_estimate([1.0] * 8, 1.0, (2.0, 1.0), [6.6, 1.0, 6.6], aside=0.5) == (8, False)
    assert layers_by_estimate([1.0] * 4, 1.0, (1.0, 1.0), [2.0], aside=0.5) == (0, False)


@pytest.mark.parametrize(
    ("version", "gpu", "cards", "context", "slots"),
    [
        ("0.1.40", "rtx-4090", 1, 2048, 1),
        ("0.3.12", "rtx-4090", 1, 2048, 4),
        ("0.6.7", "rtx-4090", 1, 4096, 4),
        ("0.7.0", "rtx-4090", 1, 4096, 2),
        ("0.10.0", "rtx-4090", 1, 4096, 1),
        ("0.15.5", "rtx-4070", 1, 4096, 1),
        ("0.15.5", "rtx-4090", 1, 32768, 1),
        ("0.15.5", "rtx-4090", 2, 131072, 1),  # 262,144 for 47 GiB and more, as far as the model goes
        ("0.32.15", "h100-sxm", 1, 131072, 1),
    ],
)
def test_defaults_by_version_and_memory(version: str, gpu: str, cards: int, context: int, slots: int) -> None:
    """api/types.go and envconfig/config.go; server/routes.go: 4k, 32k or 256k by the memory of all cards."""
    found = start("llama-3.1-8b:q4_k_m", gpu, cards=cards, version=version)
    assert (found.context, found.max_seqs) == (context, slots)


def test_a_narrow_cache_needs_fused_attention_before_llama_server() -> None:
    plain = start("llama-3.1-8b:q4_k_m", "rtx-4090", version="0.5.13", kv_dtype="q8_0", context=8192, max_seqs=1)
    assert plain.kv_format == "fp16"
    assert "OLLAMA_FLASH_ATTENTION=1" in said(plain)
    fused = start(
        "llama-3.1-8b:q4_k_m",
        "rtx-4090",
        version="0.5.13",
        kv_dtype="q8_0",
        context=8192,
        max_seqs=1,
        extra={"flash-attn": "on"},
    )
    assert fused.kv_format == "q8_0"
    assert float(fused.ledger["kv_cache"].bytes) / GIB == pytest.approx(1.0 * 8.5 / 16, rel=1e-6)


def test_batches_grow_with_the_context_as_far_as_there_is_room() -> None:
    """server/sched.go: 2,048 above 32,768 cells, 1,024 above 4,096; less where weights and cache take more than 60 or 75 %."""
    room = [[2048, 0.60, 2.0], [1024, 0.75, 0.75]]
    rule = {"room": room, "least": 512, "share": 0.8}
    assert batch_that_fits(2048, 5 * GIB, 24 * GIB, **rule) == 2048  # type: ignore[arg-type]
    assert batch_that_fits(2048, 16 * GIB, 24 * GIB, **rule) == 1024  # type: ignore[arg-type]
    assert batch_that_fits(2048, 19 * GIB, 24 * GIB, **rule) == 512  # type: ignore[arg-type]
    assert batch_that_fits(512, 1.0, 24 * GIB, **rule) == 512  # type: ignore[arg-type]
    assert start("llama-3.1-8b:q4_k_m", "rtx-4090").max_batched_tokens == 1024
    assert start("llama-3.1-8b:q4_k_m", "rtx-4090", context=4096).max_batched_tokens == 512


def test_the_fewest_cards_hold_a_model() -> None:
    one = start("llama-3.1-8b:q4_k_m", "rtx-4090", cards=2, context=8192)
    spread = start("llama-3.1-8b:q4_k_m", "rtx-4090", cards=2, context=8192, extra={"sched-spread": True})
    assert float(one.ledger["weights"].bytes) == pytest.approx(4.30 * GIB, rel=0.01)
    assert float(spread.ledger["weights"].bytes) < 0.6 * float(one.ledger["weights"].bytes)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama3.1", "llama3.1:8b-q4_K_M"),
        ("llama3.1:latest", "llama3.1:8b-q4_K_M"),
        ("registry.ollama.ai/library/llama3.1:8b", "llama3.1:8b-q4_K_M"),
        ("llama3:70b", "llama3:70b-q4_0"),
        ("llama3.1:8b-instruct-q8_0", "llama3.1:8b-instruct-q8_0"),
        ("gemma3:4b-it-qat", "gemma3:4b-it-qat-q4_0"),
        ("qwen3:8b-fp16", "qwen3:8b-fp16"),
        ("gpt-oss", "gpt-oss:20b"),
        ("hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF", "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:q4_K_M"),
        ("hf.co/unsloth/Qwen3-8B-GGUF:Q6_K", "hf.co/unsloth/Qwen3-8B-GGUF:Q6_K"),
        ("./mine.gguf", "./mine.gguf"),
    ],
)
def test_what_a_tag_holds(name: str, weights: str) -> None:
    assert weights_of(name) == weights


@pytest.mark.parametrize(
    ("word", "size_gb"),
    # README.md of ollama/ollama 0.9.0 and 0.1.48
    [
        ("llama3.3", 43),
        ("phi4", 9.1),
        ("deepseek-r1:7b", 4.7),
        ("llama3:70b", 40),
        ("codellama", 3.8),
        ("llama3.2", 2.0),
    ],
)
def test_sizes_of_default_tags(word: str, size_gb: float) -> None:
    held = sum(tensor.bytes for tensor in load_model(weights_of(word)).tensors)
    assert held / 1e9 == pytest.approx(size_gb, rel=0.04)


def test_a_mix_that_the_tag_holds_anyway_is_not_written() -> None:
    assert tag_of("llama3.1:8b-q4_K_M") == "llama3.1:8b"
    assert tag_of("llama3.1:8b-q8_0") == "llama3.1:8b-q8_0"
    assert tag_of("llama3:8b-q4_K_M") == "llama3:8b-q4_K_M"


def test_check_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["OLLAMA_CONTEXT_LENGTH=8192", "OLLAMA_NUM_PARALLEL=2", "ollama", "run", "llama3.1:8b", "tell me a story"]
    assert main(["check", "--gpu", "rtx-4090", "--json", "--", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["stage"] == "ok"
    cache = next(line for line in found["memory"]["items"] if line["name"] == "kv_cache")
    assert cache["bytes"] == 2 * 8192 * 131072


def test_a_container_of_the_server_names_no_model() -> None:
    engine, words = extract(["docker run --gpus all -e OLLAMA_NUM_PARALLEL=2 -p 11434:11434 ollama/ollama:0.12.6"])
    assert engine == "ollama"
    with pytest.raises(InputError, match="names no model; give ollama run MODEL"):
        OLLAMA.read(words)


def test_a_modelfile_decides(tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_text(
        'FROM qwen3:8b\nparameter num_ctx 16384\nPARAMETER num_gpu 20\nSYSTEM """\nFROM evil\n"""\nADAPTER ./a\n'
    )
    command = OLLAMA.read(["OLLAMA_CONTEXT_LENGTH=4096", "ollama", "create", "mine", "-f", str(path)])
    options = command.plan.pool.options
    assert (command.model, options.context, options.extra["n-gpu-layers"]) == ("qwen3:8b-q4_K_M", 16384, "20")
    assert any("ADAPTER" in one.message for one in command.warnings)
    found = start("qwen3-8b:q4_k_m", "rtx-4090", version="0.24.0", context=16384, extra={"n-gpu-layers": "20"})
    assert "20 layers of 37" in said(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no model"),
        ('SYSTEM """\nFROM x\n', "names no model"),
        ("FROM x\nPARAMETER num_ctx lots", "context 'lots' is not a whole number"),
        ("FROM x\nPARAMETER num_ctx " + "9" * 5000, "is not a whole number"),
        ("FROM x\nPARAMETER num_gpu -7", "n-gpu-layers '-7' is not a whole number"),
        ("FROM " + "a" * 10_000, "names no model"),
        ("\n" * 30_000, "more than 20,000 lines"),
    ],
)
def test_hostile_modelfiles_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "Modelfile"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        OLLAMA.read(["ollama", "create", "mine", "-f", str(path)])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_modelfile_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_bytes(b"\xff\xfe\x00FROM")
    for path in (tmp_path / "Modelfile", tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError):
            OLLAMA.read(["ollama", "create", "mine", "-f", str(path)])
    assert parse("FROM ./w.gguf", name="/a/Modelfile").model == "/a/w.gguf"


@pytest.mark.parametrize("name", ["n-gpu-layers", "main-gpu"])
@pytest.mark.parametrize("value", ["1\nSYSTEM evil", "1\rADAPTER ./evil", "$(id)", "1 2", "", "1\u2028", "9" * 100])
def test_a_value_is_no_instruction_of_a_modelfile(name: str, value: str) -> None:
    """What stands in a plan's document may be anybody's: a line more in a Modelfile is an instruction of theirs."""
    plan = Plan(engine=EngineRef(name="ollama"), pools=(Pool(options=ServeOptions(extra={name: value})),))
    with pytest.raises(InputError, match="cannot stand in a Modelfile; give a number or a word") as caught:
        OLLAMA.write(model="./w.gguf", plan=plan)
    assert "\n" not in str(caught.value)


def test_what_is_made_has_a_name() -> None:
    def made(create: object) -> list[str]:
        extra = {"create": create, "n-gpu-layers": "9"}
        return OLLAMA.write(
            model="m", plan=Plan(engine=EngineRef(name="ollama"), pools=(Pool(options=ServeOptions(extra=extra)),))
        )

    assert made("mine")[1:3] == ["create", "mine"]
    assert made(True)[2] == "True"
    with pytest.raises(InputError, match="cannot be a model name"):
        made("--quantize")


def test_read_is_the_inverse_of_write() -> None:
    options = ServeOptions(
        context=8192,
        max_seqs=4,
        kv_dtype="q8_0",
        extra={"flash-attn": "on", "gpu-overhead": 1 << 30, "sched-spread": True},
    )
    plan = Plan(engine=EngineRef(name="ollama"), pools=(Pool(layout=Layout(), options=options),))
    words = OLLAMA.write(model="llama3.1:8b", plan=plan)
    assert words[-3:] == ["ollama", "run", "llama3.1:8b"]
    assert OLLAMA.read(words).plan == plan
    layers = replace(plan, pools=(Pool(options=ServeOptions(extra={"n-gpu-layers": "9"})),))
    again = OLLAMA.read(OLLAMA.write(model="m", plan=layers)).plan.pool.options.extra
    assert again == {"n-gpu-layers": "9", "file": "Modelfile", "create": "m", "said": "num_gpu=9"}
    with pytest.raises(InputError, match="cards in turn"):
        OLLAMA.write(model="m", plan=replace(plan, pools=(Pool(layout=Layout(tp=2)),)))


def test_it_is_timed_as_the_engine_whose_kernels_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels_of("ollama") == traits_of("ollama").built_on == "llama.cpp"
    assert kernels_of("vllm") == "vllm"
    common = [
        "fit",
        "llama-3.1-8b",
        "--precision",
        "q4_k_m",
        "--gpu",
        "rtx-4090",
        "--context",
        "4096",
        "--json",
        "--isl",
        "512",
    ]
    tpot = []
    for engine in ("ollama", "llama.cpp"):
        assert main([*common, "--osl", "128", "--engine", engine]) == 0
        tpot.append(json.loads(capsys.readouterr().out)["speed"]["tpot_ms"]["value"])
    assert tpot[0] == pytest.approx(tpot[1], rel=0.02)


def test_a_modelfile_is_checked_as_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_text("FROM llama3.1:8b\nPARAMETER num_ctx 16384\nPARAMETER num_gpu 20\nPARAMETER num_batch 256\n")
    words = f"OLLAMA_NUM_PARALLEL=2 ollama create mine -f {path}"
    found = tl.check(words, gpu="rtx-3060").to_dict()
    assert found["command"] == words
    # 4 KiB a token for each of the last 19 of 32 layers; the head is the twentieth
    assert found["kv_cache"]["bytes_per_token_per_gpu"] == 19 * 4096


def test_its_own_engine_keeps_the_windows_of_all_slots_together() -> None:
    """A server log of 0.9: 1.6 GiB of cache for gemma3:27b at 8,192 cells of two slots, 3.9 GiB at full length."""
    said = {}
    for version in ("0.6.8", "0.9.6"):
        server = f"docker run -e OLLAMA_CONTEXT_LENGTH=4096 -e OLLAMA_NUM_PARALLEL=2 ollama/ollama:{version}"
        found = tl.check(f"{server} run gemma3:27b", gpu="w7900").to_dict()
        said[version] = next(one["bytes"] for one in found["memory"]["items"] if one["name"] == "kv_cache") / GIB
    assert said["0.9.6"] == pytest.approx(1.64, abs=0.05)
    assert said["0.6.8"] == pytest.approx(3.88, abs=0.05)


@pytest.mark.parametrize(
    ("instructions", "blind"),
    [
        ("FROM ./gemma-3-27b-it-Q4_K_M.gguf\n", True),
        ("FROM ./gemma-3-27b-it-Q4_K_M.gguf\nFROM ./mmproj-F16.gguf\n", False),
        ("FROM ./mmproj-F16.gguf\nFROM ./gemma-3-27b-it-Q4_K_M.gguf\n", False),
        ("FROM gemma3:27b\n", False),
    ],
)
def test_a_file_of_weights_holds_no_tower(tmp_path: Path, instructions: str, blind: bool) -> None:
    """A model of GGUF files has its projector in a FROM of its own (openbmb/MiniCPM-Llama3-V-2_5 discussion 12 shows such a
    Modelfile); a library's model holds it."""
    (tmp_path / "Modelfile").write_text(instructions)
    found = OLLAMA.read(["ollama", "create", "mine", "-f", str(tmp_path / "Modelfile")])
    assert found.plan.pool.options.text_only is blind
    assert "mmproj" not in found.model


def test_the_line_that_an_answer_prints_is_checked_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes a Modelfile first, which is not there yet where it is pasted."""
    monkeypatch.chdir(tmp_path)
    load = {"isl": 64, "osl": 1024, "concurrency": 8}
    asked = tl.fit("qwen3-8b", "rtx-4090", engine="ollama", precision="Q8_0", **load)
    again = tl.check(str(asked.command), gpu="rtx-4090", **load)
    assert str(asked.command).startswith("printf ")
    assert again.memory.total.value == asked.memory.total.value
    assert again.context == asked.context
