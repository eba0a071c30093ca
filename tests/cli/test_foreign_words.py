"""Words from outside: terminals of any encoding, names that would become commands, escape sequences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trilemma.cli.main import main
from trilemma.engines.deployment.fleet import EngineGroup, Fleet
from trilemma.engines.deployment.scripts import docker_files, host_files
from trilemma.engines.job_files import TrainingJob, launch_files
from trilemma.errors import InputError
from trilemma.foreign_words import shown, written

#: Signs that shells, YAML, HTML and terminals read as more than themselves.
SIGNS = st.text(
    st.sampled_from("ab/.-_ \"'`$(){}[]<>&|;#:!*?~\\\n\r\t\x00\x1b\x85\u2028\u202e\ud800=%@,é"), min_size=1, max_size=24
)
#: A word that runs where a shell reads it as one.
RUNS = [
    "m\ntouch ran\n#",
    "$(touch ran)",
    "`touch ran`",
    "'; touch ran; '",
    '"; touch ran; "',
    "x\rtouch ran",
    "& touch ran &",
]


def asked(encoding: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    return subprocess.run([sys.executable, "-m", "trilemma", *words], capture_output=True, env=environment, check=False)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437", "gbk"])
@pytest.mark.parametrize(
    "words", [("fit", "qwen3-32b", "--gpu", "l40s:2"), ("hardware", "h100-sxm", "--explain"), ("formats",)]
)
def test_terminals_that_are_not_utf_8(encoding: str, words: tuple[str, ...]) -> None:
    ran = asked(encoding, *words)
    assert ran.returncode == 0, ran.stderr
    text = ran.stdout.decode(encoding)
    assert "\ufffd" not in text
    assert "?" not in text.replace("(?)", "")


def test_documents_in_ascii_are_json() -> None:
    ran = asked("ascii", "fit", "qwen3-32b", "--gpu", "l40s:2", "--json")
    assert json.loads(ran.stdout)["schema"] == "trilemma/estimate@1"


def test_escape_sequences_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "m\x1b[31m\x9bodel\ud800", "--gpu", "l40s"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert all(sign.isprintable() for sign in told.strip("\n"))


@given(SIGNS)
def test_shown_words_print(word: str) -> None:
    assert shown(word).isprintable()
    assert len(shown(word)) == len(word)


def in_a_shell(folder: Path, script: str, programs: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
    """Run ``script`` in ``folder`` where ``programs`` do nothing; whatever else it runs leaves a file there."""
    tools = folder.parent / "tools"
    tools.mkdir(exist_ok=True)
    for program in programs:
        (tools / program).write_text("#!/bin/sh\nexit 0\n")
        (tools / program).chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(["sh", script], cwd=folder, env=environment, capture_output=True, check=False, timeout=10)


@pytest.mark.parametrize("of", ["the model", "the plan"])
@pytest.mark.parametrize("name", RUNS)
def test_names_never_run_in_scripts_of_quantisation(
    of: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / (name if of == "the model" else "tiny")
    model.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000}  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    plan, out = tmp_path / (f"{name}.json" if of == "the plan" else "mine.json"), tmp_path / "out"
    plan.write_text(
        json.dumps(
            {"name": name, "rules": [{"roles": ["matrix"], "weights": "q8_0"}, {"roles": ["*"], "weights": "own"}]}
        )
    )
    chosen = ["--plan", str(plan)] if of == "the plan" else ["--preset", "q4_k_m"]
    code = main(["precision", "export", str(model), *chosen, "--to", "llama-quantize", "-o", str(out)])
    if of == "the model" and not name.isprintable():
        assert code == 2
        assert "holds a line break or control character" in capsys.readouterr().err
        return
    assert code == 0
    in_a_shell(out, "quantize.sh", ("llama-quantize",))
    assert {path.name for path in out.iterdir()} == {"quantize.sh"}


@settings(max_examples=150)
@given(SIGNS, SIGNS, st.sampled_from([*RUNS, "tiny"]))
@example("a\nb", "c", "tiny")
def test_scripts_and_manifests_of_serving_quote_or_refuse(model: str, value: str, weights: str) -> None:
    def fleet() -> Fleet:
        group = EngineGroup(
            role="serve", replicas=1, gpus=1, program=("vllm", "serve"), arguments=(weights, "--served-model-name", model, value),
            entry="args", environment=(("A", value),),
        )  # fmt: skip
        return Fleet(engine="vllm", label="vLLM", model=model, weights=weights, maker="nvidia", image="vllm/vllm-openai:v0.11.0",
                     port=8000, health="/health", groups=(group,))  # fmt: skip

    if not all(word.isprintable() for word in (model, value, weights)):
        with pytest.raises(InputError, match="control character"):
            fleet()
        return
    files = host_files(fleet())
    assert shell_words_of(files["serve.sh"], "vllm") == ["serve", weights, "--served-model-name", model, value]
    assert value in shell_words_of(docker_files(fleet())["docker-run.sh"], "docker")


def shell_words_of(script: str, program: str) -> list[str]:
    """The words that ``program`` is given when a shell runs ``script``."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tool = Path(folder, program)
        tool.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
        tool.chmod(0o755)
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": folder}
        path = Path(folder, "script.sh")
        path.write_text(script)
        ran = subprocess.run(
            ["bash", str(path)], cwd=folder, env=environment, capture_output=True, check=True, timeout=10
        )
        assert {one.name for one in Path(folder).iterdir()} == {program, "script.sh"}
        return ran.stdout.decode().split("\0")[:-1]


@settings(max_examples=100)
@given(SIGNS, SIGNS)
def test_files_of_trainings_quote_or_refuse(value: str, variable: str) -> None:
    if not (value + variable).isprintable():
        with pytest.raises(InputError, match="control character"):
            TrainingJob(
                name="job", program=("train.py", value), nodes=1, gpus_per_node=8, environment=(("A", variable),)
            )
        return
    job = TrainingJob(
        name="job", program=("train.py", "--name", value), nodes=1, gpus_per_node=8, environment=(("A", variable),)
    )
    files = launch_files(job)
    words = shell_words_of(files["train.sh"], "torchrun")
    assert words[words.index("--name") + 1] == value
    assert yaml.safe_load(files["jobset.yaml"])["kind"] == "JobSet"


def test_written_names_the_word() -> None:
    with pytest.raises(InputError, match="the plan 'a b' holds a line break"):
        written(["fine", "a\nb"], what="the plan")
