"""Training on the command line: plan, fit, export, check, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main

EIGHT = ("llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "8192", "--global-batch", "64")


def out(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out(capsys, words[0], "--json", *words[1:], code=code))
    return found


def test_plan_tells_all_that_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "plan", *EIGHT)
    for words in ("techniques of #1", "from a naive plan to #1", "what 10 % more would buy", "fewest GPUs that hold it",
                  "plans looked at", "time against memory", "MFU"):  # fmt: skip
        assert words in text


def test_plans_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "plan", *EIGHT, "--top", "3")
    assert found["schema"] == "trilemma/plans@1"
    assert found["searched"] >= found["legal"] >= found["fitting"] > 0
    assert found["fitting"] + sum(row["count"] for row in found["rejected"]) == found["searched"]
    steps = [plan["speed"]["step_s"]["value"] for plan in found["plans"]]
    front = [(steps[at], found["plans"][at]["memory"]["total_bytes"]) for at in found["pareto"]]
    assert front == sorted(front)
    assert [memory for _, memory in front] == sorted((memory for _, memory in front), reverse=True)
    assert {gain["resource"] for gain in found["sensitivity"]} >= {"compute", "memory", "memory bandwidth"}
    assert found["waterfall"][0]["change"].startswith("naive")
    assert found["waterfall"][-1]["step_s"] == pytest.approx(steps[0], rel=1e-5)
    assert found["least_gpus"]["gpus"] <= 8
    assert all({"name", "cuts", "collective", "runs_on"} <= set(row) for row in found["techniques"])


def test_a_plan_fits_as_it_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    best = document(capsys, "plan", *EIGHT)["plans"][0]
    plan = best["inputs"]["plan"]
    degrees = [word for name in ("tp", "pp", "vpp", "cp") for word in (f"--{name}", str(plan["layout"][name]))]
    mode = plan["recompute"]["mode"]
    parts = ",".join(plan["recompute"]["parts"])
    again = document(
        capsys, "fit", *EIGHT, *degrees, "--micro-batch", str(plan["micro_batch"]), "--precision", plan["recipe"]["name"],
        "--zero", str(plan["zero"]), "--recompute", f"{mode}:{parts}" if parts else mode,
    )  # fmt: skip
    assert again["memory"]["total_bytes"] == best["memory"]["total_bytes"]
    assert again["speed"]["step_s"] == best["speed"]["step_s"]


def test_nothing_fits_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama-3.1-70b", "--gpu", "rtx-4090:2", "--train", "4096", "--global-batch", "2")
    found = document(capsys, "plan", *words, code=1)
    assert found["plans"] == []
    assert found["nearest"]["fits"] is False
    assert "NO PLAN FITS" in out(capsys, "plan", *words, code=1)


def test_seven_billion_qlora_on_one_4090(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "fit", "llama-2-7b", "--gpu", "rtx-4090", "--train", "2048", "--global-batch", "1", "--method", "qlora"
    )
    assert found["fits"]
    assert found["inputs"]["workload"]["method"] == "qlora"


ROUND_TRIPS = [
    ("megatron", ("plan", *EIGHT)),
    ("megatron", ("fit", "llama-3.1-405b", "--gpu", "h100-sxm:1024", "--train", "8192", "--global-batch", "512", "--tp", "8",
                  "--pp", "8", "--vpp", "8", "--cp", "2", "--precision", "fp8-bf16-grads")),
    ("megatron", ("fit", "qwen3-30b-a3b", "--gpu", "h200-sxm:32", "--train", "4096", "--global-batch", "64", "--ep", "8", "--pp",
                  "2", "--recompute", "full")),
    ("megatron", ("fit", "llama-3.1-8b", "--gpu", "h100-sxm:24", "--train", "4096", "--global-batch", "32", "--pp", "3")),
    ("torchtitan", ("plan", *EIGHT, "--engine", "torchtitan", "--precision", "fsdp")),
    ("deepspeed", ("plan", *EIGHT, "--engine", "deepspeed")),
    ("accelerate", ("plan", *EIGHT, "--engine", "accelerate")),
    ("accelerate", ("fit", "llama-2-7b", "--gpu", "rtx-4090", "--train", "2048", "--global-batch", "16", "--method", "qlora",
                    "--recompute", "full", "--engine", "accelerate")),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "question"), ROUND_TRIPS)
def test_export_then_check_gives_the_same_estimate(
    framework: str,
    question: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits = main([*question, "--json"])
    text = capsys.readouterr().out
    first = json.loads(text)
    first = first["plans"][0] if "plans" in first else first
    (tmp_path / "plan.json").write_text(text)
    folder = tmp_path / "files"
    out(capsys, "export", str(tmp_path / "plan.json"), "--to", framework, "-o", str(folder))
    assert {"train.sh", "slurm.sbatch", "jobset.yaml"} <= {path.name for path in folder.iterdir()}
    monkeypatch.chdir(folder)
    gpus = first["inputs"]["cluster"]["gpus"]
    again = document(
        capsys,
        "check",
        "--gpu",
        f"{first['inputs']['cluster']['accelerator']['id']}:{gpus}",
        "--",
        "train.sh",
        code=fits,
    )
    assert again["memory"]["items"] == first["memory"]["items"]
    assert again["speed"] == first["speed"]
    assert not [warning for warning in again["warnings"] if warning["code"] == "unknown-flag"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fit", *EIGHT, "--tp", "3"), "does not divide the 8 GPUs"),
        (("fit", *EIGHT, "--tp", "2", "--dp", "8"), "is 16 GPUs, not the 8 of --gpu; use --dp 4"),
        (
            ("fit", *EIGHT, "--micro-batch", "3"),
            "--micro-batch 3 x --dp 8 does not divide --global-batch 64; use --micro-batch 1, 2",
        ),
        (("fit", *EIGHT, "--pp", "8", "--vpp", "5"), "more pipeline pieces than the 32 layers"),
        (("fit", *EIGHT, "--ep", "2"), "expert parallelism without experts"),
        (("fit", *EIGHT, "--pp", "2", "--zero", "3"), "use --zero 1 or --pp 1"),
        (("fit", *EIGHT, "--vpp", "2"), "leave --vpp out or raise --pp"),
        (("fit", *EIGHT, "--recompute", "most"), "--recompute 'most' is not known"),
        (("fit", *EIGHT, "--offload", "gradients"), "--offload 'gradients' is not known"),
        (("fit", *EIGHT, "--offload", "optimizer=nan"), "'nan' is not a finite number"),
        (("fit", *EIGHT, "--optimizer", "adamx"), "unknown optimizer 'adamx'"),
        (("fit", *EIGHT, "--precision", "fp9"), "unknown training recipe 'fp9'"),
        (("fit", *EIGHT, "--schedule", "2f2b"), "unknown schedule '2f2b'"),
        (("fit", *EIGHT, "--engine", "vllm"), "unknown training engine 'vllm'"),
        (("fit", *EIGHT, "--tokens", "-5"), "--tokens"),
        (("fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "8192"), "needs --global-batch"),
        (("fit", *EIGHT[:3], "--train", "nan", "--global-batch", "8"), "is not a whole number"),
        (("fit", "qwen3-30b-a3b", *EIGHT[1:], "--ep", "3"), "ep does not divide the 128 experts"),
        (("fit", "qwen3-30b-a3b", *EIGHT[1:], "--ep", "16"), "--ep 16 does not divide the 8 ranks of a stage"),
        (("plan", *EIGHT, "--tp", "3"), "does not divide the 8 GPUs"),
        (("plan", *EIGHT[:-1], "7", "--dp", "8"), "leaves no layout of 8 GPUs"),
        (("plan", *EIGHT, "--top", "0"), "--top: 0 is out of range"),
    ],
)
def test_bad_input_exits_two_with_the_fix(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


def test_export_asks_for_the_right_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text(out(capsys, "fit", *EIGHT, "--recompute", "full", "--json"))
    assert main(["export", str(tmp_path / "plan.json"), "--to", "vllm", "-o", str(tmp_path)]) == 2
    assert "holds a training plan; use --to megatron" in capsys.readouterr().err


def test_a_run_of_stated_length_says_days_dollars_and_energy(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm:16",
        "--train",
        "8192",
        "--global-batch",
        "128",
        "--tokens",
        "100B",
    ]
    assert main([*words, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]
    run, watts = best["training_run"], best["power"]["watts"]
    hours = run["days"]["value"] * 24
    assert run["usd"]["value"] == pytest.approx(hours * best["cost"]["usd_per_hour"], rel=1e-3)
    assert run["usd"]["low"] < run["usd"]["value"] < run["usd"]["high"]
    assert run["kwh"]["value"] == pytest.approx(hours * watts / 1000, rel=1e-3)
    assert main(words) == 0
    (told,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("the run with #1: ")]
    assert f"{run['days']['value']:,.1f} days" in told
    assert f"${run['usd']['value']:,.0f} (" in told
    assert "kWh of the boards" in told or "MWh of the boards" in told


def test_comparing_cards_for_training_gives_the_figures_of_each_plan_to_the_digit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ["--train", "8192", "--global-batch", "64", "--tokens", "10B"]
    cards = ["h100-sxm:16", "a100-sxm4-80gb:8"]
    words = [word for card in (*cards, "rtx-4090:2") for word in ("--gpu", card)]
    assert main(["compare", "llama-3.1-8b", *words, *job, "--json"]) == 0
    candidates = json.loads(capsys.readouterr().out)["candidates"]
    for card, one in zip(cards, candidates, strict=False):
        assert main(["plan", "llama-3.1-8b", "--gpu", card, *job, "--json"]) == 0
        best = json.loads(capsys.readouterr().out)["plans"][0]
        for part in ("speed", "memory", "cost", "training_run", "verdict"):
            assert one["best"][part] == best[part]
    last = candidates[-1]
    assert not last["fits"]
    assert last["least_gpus"] > 2
    assert main(["compare", "llama-3.1-8b", *words, *job]) == 0
    assert f"does not fit, {last['least_gpus']} GPUs hold it" in " ".join(capsys.readouterr().out.split())
