"""Programs of a desk (Ollama, LM Studio, MLX-LM): what export writes is read back as the plan that it was."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilemma.cli.main import main
from trilemma.engines import deployer, get
from trilemma.engines.deployment import scripts
from trilemma.engines.extract import extract
from trilemma.errors import InputError
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions

FILE = "./Llama-3.1-8B-Instruct-Q4_K_M.gguf"
COUNTS = st.none() | st.integers(1, 64)
CONTEXTS = st.none() | st.integers(256, 131072)
OLLAMA = st.builds(
    ServeOptions,
    context=CONTEXTS, max_seqs=COUNTS, max_batched_tokens=st.none() | st.integers(32, 4096),
    extra=st.fixed_dictionaries(
        {},
        optional={
            "n-gpu-layers": st.integers(0, 99).map(str), "main-gpu": st.integers(0, 7), "gpu-overhead": st.integers(1, 2**33),
            "sched-spread": st.just(True), "flash-attn": st.sampled_from(["on", "off"]),
        },
    ),
)  # fmt: skip
STUDIO = st.builds(
    ServeOptions,
    context=CONTEXTS, max_seqs=COUNTS,
    extra=st.fixed_dictionaries({}, optional={"gpu": st.sampled_from(["max", "off", "0.5", "0.8"])}),
)  # fmt: skip
MLX = st.builds(
    ServeOptions,
    max_seqs=COUNTS, max_batched_tokens=st.none() | st.integers(32, 4096),
    extra=st.fixed_dictionaries({}, optional={"prompt-cache-size": st.integers(0, 16)}),
)  # fmt: skip
PLANS = st.one_of(
    st.tuples(st.just("ollama"), OLLAMA, st.sampled_from([FILE, "llama3.1:8b", "hf.co/bartowski/m-GGUF:Q5_K_M"])),
    st.tuples(st.just("lm-studio"), STUDIO, st.sampled_from([FILE, "qwen/qwen3-8b:q8_0"])),
    st.tuples(st.just("mlx-lm"), MLX, st.just("mlx-community/Qwen3-8B-4bit")),
)


def plan_of(engine: str, options: ServeOptions) -> Plan:
    return Plan(engine=EngineRef(name=engine), pools=(Pool(layout=Layout(), options=options),))


def own(plan: Plan) -> Plan:
    """``plan`` without the file that it was read from, nor what follows from it: a file of weights holds no tower."""
    options = plan.pool.options
    kept = {name: value for name, value in options.extra.items() if name not in ("file", "create", "said")}
    return replace(plan, pools=(replace(plan.pool, options=replace(options, extra=kept, text_only=False)),))


def laid(folder: Path, plan: Plan, model: str) -> None:
    fleet = deployer(plan.engine.name)(model=model, plan=plan, version=None, maker="nvidia", per_node=1)
    for name, text in scripts.host_files(fleet).items():
        (folder / name).write_text(text, encoding="utf-8")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=PLANS)
def test_reading_what_was_written_is_the_identity(tmp_path_factory: pytest.TempPathFactory, drawn: Any) -> None:
    engine, options, model = drawn
    plan, folder = plan_of(engine, options), tmp_path_factory.mktemp("desk")
    laid(folder, plan, model)
    found, words = extract([str(folder / "serve.sh")])
    again = get(engine).read(words)
    assert (found, own(again.plan)) == (engine, plan)
    line = extract([get(engine).line(model=model, plan=plan)])[1]
    named = get(engine).read(line)
    assert own(named.plan) == plan
    assert {Path(one.model).name for one in (again, named)} == {Path(again.model).name}
    assert subprocess.run(["sh", "-n", str(folder / "serve.sh")], check=False).returncode == 0


def test_a_file_of_weights_becomes_a_model_first() -> None:
    """docs/import.mdx: FROM the file in a Modelfile, then ollama create; names alone are run (types/model/name.go)."""
    line = get("ollama").line(model=FILE, plan=plan_of("ollama", ServeOptions(context=8192)))
    assert line == (
        "printf '%s\\n' 'FROM ./Llama-3.1-8B-Instruct-Q4_K_M.gguf' 'PARAMETER num_ctx 8192' > Modelfile && ollama create"
        " llama-3.1-8b-instruct-q4_k_m -f Modelfile && ollama run llama-3.1-8b-instruct-q4_k_m"
    )
    read = get("ollama").read(["ollama", "run", FILE])
    assert "refused-value" in {one.code for one in read.warnings}
    assert not {"refused-value"} & {one.code for one in get("ollama").read(["ollama", "run", "llama3.1:8b"]).warnings}


def test_the_line_writes_the_file_that_it_says(tmp_path: Path) -> None:
    hostile = "./a b'$(touch gone)%s\\n.gguf"
    line = get("ollama").line(model=hostile, plan=plan_of("ollama", ServeOptions()))
    subprocess.run(["sh", "-c", line.partition(" && ")[0]], cwd=tmp_path, check=True)
    assert (tmp_path / "Modelfile").read_text() == f"FROM {hostile}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["Modelfile"]
    with pytest.raises(InputError, match="three quotes"):
        get("ollama").line(model='./a"""b.gguf', plan=plan_of("ollama", ServeOptions()))


def test_a_modelfile_with_instructions_of_its_own_is_kept(tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text('FROM llama3.1:8b\nPARAMETER num_ctx 4096\nSYSTEM "be brief"\n')
    own = get("ollama").read(["ollama", "create", "mine", "-f", str(tmp_path / "Modelfile")])
    assert get("ollama").write(model=own.model, plan=own.plan) == [
        "ollama", "create", "mine", "-f", str(tmp_path / "Modelfile"),
    ]  # fmt: skip


def test_a_changed_plan_of_a_modelfile_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM llama3.1:8b\nPARAMETER num_ctx 131072\n")
    command = get("ollama").read(["ollama", "create", "mine", "-f", str(tmp_path / "Modelfile")])
    shorter = replace(
        command.plan, pools=(replace(command.plan.pool, options=replace(command.plan.pool.options, context=8192)),)
    )
    assert get("ollama").line(model="llama3.1:8b", plan=shorter) == (
        "printf '%s\\n' 'FROM llama3.1:8b' 'PARAMETER num_ctx 8192' > Modelfile && ollama create mine -f Modelfile && ollama"
        " run mine"
    )


def test_a_server_before_the_model_is_passed_over() -> None:
    engine, words = extract(["OLLAMA_NUM_PARALLEL=4 ollama serve & sleep 3; ollama run llama3.1:8b"])
    assert (engine, words[-1]) == ("ollama", "llama3.1:8b")
    with pytest.raises(InputError, match="give ollama run MODEL"):
        get("ollama").read(extract(["ollama serve"])[1])


def test_a_cache_in_fewer_bits_is_the_generators() -> None:
    """mlx_lm/server.py has no --kv-bits."""
    words = ["mlx_lm.generate", "--model", "m/x-4bit", "--max-kv-size", "4096", "--kv-bits", "4"]
    command = get("mlx-lm").read(words)
    assert get("mlx-lm").write(model=command.model, plan=command.plan) == words
    many = plan_of("mlx-lm", ServeOptions(max_seqs=4, extra={"kv-bits": 4}))
    with pytest.raises(InputError, match="answers one request"):
        get("mlx-lm").write(model="m/x-4bit", plan=many)


@pytest.mark.parametrize(
    ("engine", "words", "gpu"),
    [
        ("ollama", "--precision q4_k_m --kv-dtype q8_0", "rtx-4090"),
        ("lm-studio", "--precision q4_k_m", "rtx-4090"),
        ("mlx-lm", "", "m4-max-64gb"),
    ],
)
def test_check_of_the_files_gives_the_figures_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, words: str, gpu: str
) -> None:
    asked = f"fit llama-3.1-8b --gpu {gpu} --engine {engine} {words} --isl 1024 --osl 256 --concurrency 1 --max-seqs 1 --json"
    assert main(asked.split()) == 0
    text = capsys.readouterr().out
    (tmp_path / "fit.json").write_text(text)
    plan = json.loads(text)
    assert main(["export", str(tmp_path / "fit.json"), "--to", engine, "-o", str(tmp_path / "out")]) == 0
    assert "not a file" not in capsys.readouterr().err
    assert main(["check", "--gpu", gpu, "--json", "--", str(tmp_path / "out" / "serve.sh")]) == 0
    again = json.loads(capsys.readouterr().out)
    weights = {one["memory"]["items"][0]["bytes"] for one in (plan, again)}
    assert len(weights) == 1
    if engine != "mlx-lm":  # whose server is not told the longest request
        assert again["memory"]["total_bytes"] == plan["memory"]["total_bytes"]
        assert again["speed"]["tpot_ms"] == plan["speed"]["tpot_ms"]
    bench = shlex.split((tmp_path / "out" / "benchmark.sh").read_text().partition("exec ")[2])
    asked_as = {"ollama": "llama-3.1-8b-instruct-q4_k_m"}.get(engine)
    assert asked_as is None or bench[bench.index("--model") + 1] == asked_as


def test_more_than_one_server_is_refused(tmp_path: Path) -> None:
    plan = Plan(engine=EngineRef(name="ollama"), pools=(Pool(options=ServeOptions(context=4096), replicas=2),))
    with pytest.raises(InputError, match="one server of one machine"):
        laid(tmp_path, plan, "llama3.1:8b")
