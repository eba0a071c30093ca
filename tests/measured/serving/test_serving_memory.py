"""The whole command on a small table of public start-up logs: figures, verdicts, reasons, bars, exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trilemma.cli.main import main
from trilemma.columns import document_of
from trilemma.measured import read_table
from trilemma.measured.serving.memory.judge import judge
from trilemma.report.schemas import schema_of
from trilemma.report.validation import ValidationDocument

SAMPLE = Path(__file__).parents[2] / "data" / "serving_memory_sample.csv"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["validate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    from trilemma.measured import summarise

    table = read_table(SAMPLE)
    judgements, _ = judge(table.rows)
    found = summarise(table.kind.name, judgements, macro_columns=["source"])
    return document_of(ValidationDocument(validation=found))


@pytest.mark.slow
def test_the_sample_is_judged(document: dict[str, Any]) -> None:
    assert (document["schema"], document["kind"]) == ("trilemma/validation@1", "serving-memory")
    assert document["rows"] == 24
    assert document["used"] == 23
    assert {row["id"]: row["why"] for row in document["skipped"]} == {"no-model": "names no layout (tp, pp or dp)"}
    assert document["configs_used"] == 23
    assert "program=sglang" in document["by"]


@pytest.mark.parametrize(
    ("metric", "statistic", "most"),
    [
        ("weights_gib_per_gpu", "median_ape", 0.01),
        ("weights_gib_per_gpu", "p90_ape", 0.05),
        ("kv_cache_tokens_given_bytes", "median_ape", 0.001),
        ("kv_cache_gib_per_gpu", "median_ape", 0.06),
        ("kv_need_gib", "p90_ape", 0.01),
    ],
)
def test_errors_stay_within_their_bars(document: dict[str, Any], metric: str, statistic: str, most: float) -> None:
    assert document["metrics"][metric][statistic] <= most


def test_the_json_obeys_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, str(SAMPLE), "--json", "--macro", "source", "--require", "verdict.n>=1", "--require", "kv_need_gib.n>99"
    )
    document = json.loads(out)
    jsonschema.validate(document, schema_of("validation"))
    assert (code, err) == (1, "")
    assert [bar["met"] for bar in document["required"]] == [True, False]
    assert document["schema"] == "trilemma/validation@1"


def test_verdicts(document: dict[str, Any]) -> None:
    verdict = document["metrics"]["verdict"]
    assert verdict["n"] == 22
    assert verdict["accuracy"] >= 0.9
    assert verdict["balanced_accuracy"] >= 0.85


def test_classes_and_macro(document: dict[str, Any]) -> None:
    assert {"kind=dense", "quantised=yes", "gpu=nvidia-l4", "tp=2", "utilisation=stated"} <= document["by"].keys()
    macro = document["macro"]["source"]["weights_gib_per_gpu"]
    assert macro["groups"] >= 2
    assert macro["n"] == document["metrics"]["weights_gib_per_gpu"]["n"]


def test_unstated_bits_are_judged_given_the_printed_weights(document: dict[str, Any]) -> None:
    assumed = {row["id"]: row["what"] for row in document["assumed"]}
    assert "weights 18.19 GiB as the row prints them" in assumed["qwen38-exl3-5090"]
    left_out = {row["id"]: row["what"] for row in document["left_out"]}
    assert "weights_gib_per_gpu: exl3 does not state its bits" in left_out["qwen38-exl3-5090"]
    assert document["by"]["weights=stated by the row"].keys() >= {"kv_cache_gib_per_gpu", "verdict"}
    assert "weights_gib_per_gpu" not in document["by"]["weights=stated by the row"]


def test_assumptions_are_listed(document: dict[str, Any]) -> None:
    assumed = {row["id"]: " | ".join(row["what"]) for row in document["assumed"]}
    assert "gpu_memory_utilization: the engine's default" in assumed["llama31-70b-tp4"]
    assert "when issue 12330 was opened" in assumed["llama3-8b-a100-40"]
    assert "room for 2048 tokens" in assumed["gpt-oss-120b-h100"]


def test_negative_pools_count_over_the_card_and_in_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(SAMPLE), "--where", "id=coder-30b-bf16-5090", "--json")
    document = json.loads(out)
    assert code == 0
    assert "kv_cache_gib_per_gpu" not in document["metrics"]
    assert document["metrics"]["kv_cache_gib_over_card"]["n"] == 1
    verdict = document["metrics"]["verdict"]
    assert {name: verdict[name] for name in verdict if name != "reliability"} == {
        "n": 1, "accuracy": 1.0, "false_fit": 0.0
    }  # fmt: skip
    assert sum(one["n"] for one in verdict["reliability"]) == 1


def test_verdicts_hold_as_often_as_they_are_sure(capsys: pytest.CaptureFixture[str]) -> None:
    """Of starts said with 95 % at least 95 in a hundred end so, of those said with 99 % at least 98."""
    _, out, _ = run(capsys, str(SAMPLE), "--json")
    bins = {one["at_least"]: one for one in json.loads(out)["metrics"]["verdict"]["reliability"]}
    assert bins[0.5]["n_from"] >= 20
    assert bins[0.95]["held_from"] >= 0.95
    assert bins[0.99]["held_from"] >= 0.98


def test_bars_decide_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(SAMPLE), "--where", "model~^meta-llama", "--macro", "source")
    met = run(capsys, *arguments, "--require", "weights_gib_per_gpu.median_ape<=1%")
    assert met[0] == 0
    assert "met    weights_gib_per_gpu.median_ape<=1%" in met[1]
    missed = run(capsys, *arguments, "--require", "macro.weights_gib_per_gpu.median_ape<1e-9")
    assert missed[0] == 1
    assert "MISSED macro.weights_gib_per_gpu.median_ape<1e-9: is " in missed[1]


def test_a_bar_on_a_figure_that_no_row_has_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(SAMPLE), "--where", "id=llama31-8b-tp1", "--require", "kv_need_gib.mape<=1")
    assert code == 1
    assert "was not measured" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--require", "weight.median_ape<=1"), "unknown metric 'weight'; known are weights_gib_per_gpu"),
        (("--require", "macro.weights_gib_per_gpu.median_ape<=1"), "needs exactly one --macro COLUMN"),
        (("--macro", "sauce"), "unknown column 'sauce'; did you mean source"),
        (("--where", "model=nothing"), "no row of"),
        (("--where", "model~["), "not a regular expression"),
        (("--by", "weight"), "unknown metric 'weight'"),
        (("--holdout", "sauce"), "unknown column 'sauce'"),
        (("--rows", "/nowhere/at/all.csv"), "cannot be written"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(capsys, str(SAMPLE), *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_other_kinds_are_recognised_by_their_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "speed.csv"
    path.write_text("model,gpu,isl,osl,metric,value\n")
    code, _, err = run(capsys, str(path))
    assert code == 2
    assert "no row of" in err
    assert "is left to judge" in err


def test_rows_file_holds_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    run(capsys, str(SAMPLE), "--rows", str(path))
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    weights = [line for line in lines if line["id"] == "llama31-8b-tp2" and line["metric"] == "weights_gib_per_gpu"]
    assert len(weights) == 1
    assert float(weights[0]["predicted"]) == pytest.approx(7.51, rel=0.005)
    assert weights[0]["measured"] == "7.51"
    assert weights[0]["inside"] == "True"
    assert any(line["id"] == "no-model" and line["why_not_judged"] for line in lines)


def changed(tmp_path: Path, **cells: str) -> Path:
    """A table of one good row with some cells changed."""
    with SAMPLE.open(newline="") as file:
        row = next(csv.DictReader(file))
    path = tmp_path / "one.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row | cells)
    return path


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"engine": ""}, "names no engine"),
        ({"engine": "vllm (some fork)"}, "a fork with rules of its own"),
        ({"model": ""}, "names no model"),
        ({"model": "nobody/has-this-model"}, "unknown model"),
        ({"gpu": ""}, "names no GPU"),
        ({"gpu": "Quantum 9000"}, "unknown accelerator"),
        ({"gpu": "NVIDIA RTX 5090 + RTX 4090"}, "more than one kind"),
        ({"tp": "-1"}, "tp -1 is outside"),
        ({"tp": "1e9"}, "tp 1e9 is outside"),
        ({"tp": "", "pp": "", "dp": "", "gpus_used": "4"}, "names no layout"),
        ({"tp": "", "pp": "3", "gpus_used": "4"}, "not a multiple of pp x dp"),
        ({"gpu_memory_utilization": "95"}, "gpu_memory_utilization 95 is outside"),
        ({"gpu_memory_utilization": "nan"}, "not a finite number"),
        ({"max_model_len": "many"}, "max_model_len 'many' is not a number"),
        ({"quantization": "homebrew"}, "does not say how weights are stored"),
        ({"kv_cache_dtype": "fp3"}, "unknown KV cache type"),
        ({"other_flags": "layer split 16,32"}, "uneven split"),
    ],
)
def test_rows_that_cannot_be_judged_say_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cells: dict[str, str], why: str
) -> None:
    code, out, _ = run(capsys, str(changed(tmp_path, **cells)), "--json")
    document = json.loads(out)
    assert code == 0
    assert document["used"] == 0
    assert why in document["skipped"][0]["why"]


@pytest.mark.parametrize(
    ("cells", "metric", "left_out"),
    [
        ({"weights_gib_per_gpu": "nan"}, "weights_gib_per_gpu", "weights_gib_per_gpu 'nan' is not a finite number"),
        ({"kv_cache_tokens": "-5"}, "kv_cache_tokens", "kv_cache_tokens: -5 has no relative error"),
        (
            {"kv_cache_gib_per_gpu": "0.3"},
            "kv_cache_gib_per_gpu",
            "kv_cache_gib_per_gpu: 0.3 GiB is under 2% of the card",
        ),
        ({"max_model_len": ""}, "max_concurrency_x", "max_concurrency_x: depends on max_model_len"),
    ],
)
def test_absurd_measurements_are_left_out_and_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cells: dict[str, str], metric: str, left_out: str
) -> None:
    _, out, _ = run(capsys, str(changed(tmp_path, **cells)), "--json")
    document = json.loads(out)
    assert metric not in document["metrics"]
    assert "non_torch_gib" in document["metrics"]
    assert any(left_out in what for what in document["left_out"][0]["what"])


def test_the_rows_own_memory_total_beats_the_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, str(changed(tmp_path, gpu_total_gib="70")), "--json")[1])
    full = json.loads(run(capsys, str(changed(tmp_path)), "--json")[1])
    bias = "kv_cache_gib_over_card"
    lost_gib = 0.95 * (79.19 - 70)
    predicted_less = full["metrics"][bias]["bias"] * 79.19 - document["metrics"][bias]["bias"] * 70
    assert predicted_less == pytest.approx(lost_gib, rel=0.01)


@pytest.mark.parametrize("length", [300, 60_000])
def test_hostile_cells_are_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setenv("TRILEMMA_MODELS", str(tmp_path))
    cells = {"model": "a/" + "x" * length, "other_flags": "=" * 60_000}
    code, out, _ = run(capsys, str(changed(tmp_path, **cells)), "--json")
    assert code == 0
    assert len(json.loads(out)["skipped"][0]["why"]) < 500
