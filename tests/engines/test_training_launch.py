"""Training scripts as a shell runs them: what the reader must set, and words handed through."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from trilemma.cli.main import main
from trilemma.engines.training_files import training_files
from trilemma.models.resolve import load_model
from trilemma.plans import TrainingPlan, optimizer, recipe
from trilemma.plans.plan import Layout
from trilemma.workloads import TrainingWorkload

SET = {"DATA_PATH": "/data/my corpus", "LEARNING_RATE": "3e-4", "TRAIN_ITERS": "100", "ROTARY_BASE": "500000"}


def files(model: str = "llama-3.1-8b", to: str = "megatron", **workload: float) -> dict[str, str]:
    plan = TrainingPlan(layout=Layout(tp=2, dp=4), optimizer=optimizer("adamw"), recipe=recipe("bf16"))
    load = TrainingWorkload(seq=8192, global_batch=64, **workload)  # type: ignore[arg-type]
    if to != "megatron":
        plan = TrainingPlan(
            layout=Layout(dp=8), optimizer=optimizer("adamw"), recipe=recipe("bf16"), implementation="transformers"
        )
    return training_files(to=to, model=load_model(model), plan=plan, workload=load, gpus_per_node=8)


def ran(text: str, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script with a torchrun that shows its words and one variable."""
    spy = folder / "torchrun"
    spy.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    spy.chmod(0o755)
    script = folder / "train.sh"
    script.write_text(text)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", str(script), *words], env=environment, capture_output=True, text=True, check=False)


def test_megatron_gets_what_the_plan_does_not_say(tmp_path: Path) -> None:
    shown = ran(files()["train.sh"], tmp_path, "--save", "/ckpt", **SET)
    words = shown.stdout.splitlines()
    assert shown.returncode == 0
    for flag, variable in (("--data-path", "DATA_PATH"), ("--lr", "LEARNING_RATE"), ("--rotary-base", "ROTARY_BASE")):
        assert words[words.index(flag) + 1] == SET[variable]
    assert words[words.index("--train-iters") + 1] == "100"
    assert words[-2:] == ["--save", "/ckpt"]


@pytest.mark.parametrize("missing", SET)
def test_megatron_does_not_start_without_it(tmp_path: Path, missing: str) -> None:
    shown = ran(files()["train.sh"], tmp_path, **{name: value for name, value in SET.items() if name != missing})
    assert shown.returncode != 0
    assert shown.stdout == ""
    assert missing in shown.stderr


def test_a_stated_length_is_written_and_learned_positions_need_no_base(tmp_path: Path) -> None:
    text = files(tokens=8192 * 64 * 1000)["train.sh"]
    assert "--train-samples 64000" in text
    assert "TRAIN_ITERS" not in text
    assert "ROTARY_BASE" not in files("gpt2")["train.sh"]
    shown = ran(text, tmp_path, **{name: value for name, value in SET.items() if name != "TRAIN_ITERS"})
    assert shown.returncode == 0


def test_other_launchers_ask_for_nothing_and_hand_words_through(tmp_path: Path) -> None:
    shown = ran(files(to="deepspeed")["train.sh"], tmp_path, "--dataset_name", "a b")
    assert shown.stdout.splitlines()[-2:] == ["--dataset_name", "a b"]


def test_variables_are_named_where_jobs_are_started() -> None:
    found = files()
    assert "# Export first: DATA_PATH, LEARNING_RATE, TRAIN_ITERS, ROTARY_BASE." in found["slurm.sbatch"]
    job = yaml.safe_load(found["jobset.yaml"])["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    environment = {item["name"]: item.get("value") for item in job["spec"]["containers"][0]["env"]}
    assert {name: environment[name] for name in SET} == dict.fromkeys(SET, "")


def test_a_plan_that_a_framework_cannot_run_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "fit llama-3.1-8b --gpu h100-sxm:8 --train 4096 --global-batch 64 --pp 2 --engine megatron --json"
    assert main(question.split()) in (0, 1)
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    assert main(["export", str(tmp_path / "plan.json"), "--to", "deepspeed", "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the plan has pp 2" in said
