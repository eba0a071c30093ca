"""Equivalence of loss curves: planted gaps are found, equal recipes are not failed, bad files get clear answers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.precision.gate import GateRules, RunCounts, gate
from trilemma.precision.loss_files import read_curves
from trilemma.report.schemas import schema_of

STEPS = 2000


def curve(seed: int, *, worse: float = 0.0, seed_noise: float = 0.003, step_noise: float = 0.03) -> dict[int, float]:
    """A power law with correlated step noise of 3 % and a spread of 0.3 % between seeds; ``worse`` lifts its end."""
    random = np.random.default_rng(seed)
    steps = np.arange(1, STEPS + 1)
    level = 1.8 + 6.0 * steps**-0.4
    white = random.normal(size=STEPS)
    noise = step_noise * np.convolve(white, [0.6, 0.3, 0.1], mode="same") / math.sqrt(0.46)
    lift = 1 + random.normal() * seed_noise + worse * steps / STEPS
    return dict(zip(steps.tolist(), (level * lift * (1 + noise)).tolist(), strict=True))


def test_few_false_fails_in_a_hundred_pairs_of_seeds() -> None:
    outcomes = [gate([curve(2 * pair)], [curve(2 * pair + 1)]).outcome for pair in range(100)]
    assert outcomes.count("fail") <= 5
    assert outcomes.count("pass") >= 50


def test_planted_gaps_of_two_percent_are_found() -> None:
    outcomes = [gate([curve(1000 + pair)], [curve(3000 + pair, worse=0.0222)]).outcome for pair in range(100)]
    assert outcomes.count("fail") >= 95
    assert outcomes.count("pass") == 0


def test_repeats_measure_the_noise_between_seeds() -> None:
    noisy = [curve(seed, seed_noise=0.02) for seed in range(6)]
    alone = gate(noisy[:1], noisy[1:2])
    repeated = gate(noisy[:3], noisy[3:])
    assert repeated.high - repeated.low > 2 * 0.01
    assert repeated.outcome != "pass"
    assert repeated.runs == RunCounts(reference=3, candidate=3)
    assert alone.high - alone.low < repeated.high - repeated.low


def test_common_noise_cancels_when_paired() -> None:
    reference = curve(5)
    shifted = {step: loss * 1.004 for step, loss in reference.items()}
    result = gate([reference], [shifted], GateRules(paired=True))
    assert result.outcome == "pass"
    assert result.gap == pytest.approx(0.004, rel=1e-6)
    assert result.high - result.low < 1e-3


def test_loss_that_is_not_finite_fails_and_says_where() -> None:
    broken = {**curve(1), 700: math.nan}
    result = gate([curve(0)], [broken])
    assert result.outcome == "fail"
    assert "nan at step 700" in result.reason
    jsonschema.validate(result.to_json(), schema_of("gate"))
    with pytest.raises(InputError, match="step 700"):
        gate([broken], [curve(0)])


def test_unequal_lengths_are_compared_where_both_are() -> None:
    longer = curve(1)
    shorter = {step: loss for step, loss in curve(0).items() if step <= 1500}
    assert gate([longer], [shorter]).steps == 1500


def test_one_line_files_are_not_enough() -> None:
    result = gate([{1: 2.0}], [{1: 2.0}])
    assert result.outcome == "not enough data"
    assert "1 steps in common" in result.reason


def test_losses_that_are_no_losses() -> None:
    with pytest.raises(InputError, match="not above zero"):
        gate([curve(0)], [dict.fromkeys(range(1, 200), -1.0)])
    with pytest.raises(InputError, match="not above zero"):
        gate([dict.fromkeys(range(1, 200), 0.0)], [curve(0)])
    assert gate([curve(0)], [dict.fromkeys(range(1, 200), 1e308)]).outcome == "fail"


def test_no_common_steps_is_bad_input() -> None:
    with pytest.raises(InputError, match="no step in common"):
        gate([{1: 2.0}], [{2: 2.0}])


def write(path: Path, *runs: dict[int, float]) -> str:
    path.write_text(
        "".join(
            json.dumps({"seed": seed, "step": step, "loss": loss}) + "\n"
            for seed, run in enumerate(runs)
            for step, loss in run.items()
        )
    )
    return str(path)


def test_command_reads_files_and_exits_by_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "a.jsonl", curve(0), curve(1))
    bad = write(tmp_path / "b.jsonl", curve(2, worse=0.05), curve(3, worse=0.05))
    assert main(["precision", "gate", good, bad, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema_of("gate"))
    assert document["outcome"] == "fail"
    assert document["runs"] == {"reference": 2, "candidate": 2}
    assert main(["precision", "gate", good, good, "--paired"]) == 0
    assert capsys.readouterr().out.startswith("PASS")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line with a loss"),
        ("not json\n", "line 1 is no JSON object"),
        ("[1, 2]\n", "line 1 is no JSON object"),
        ('{"step": "x", "loss": 1}\n', "is no step"),
        ('{"step": 1, "loss": "high"}\n', "is no number"),
        ("[" * 100_000, "is no JSON object"),
    ],
)
def test_bad_files_get_one_clear_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_curves(str(path))


def test_missing_file_and_bad_margin(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_curves(str(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="--margin"):
        GateRules(margin=-1)
