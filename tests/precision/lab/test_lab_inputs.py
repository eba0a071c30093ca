"""Recipes, presets, text and the command's answers to mistakes: no PyTorch needed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError, UnknownName
from trilemma.precision.lab.corpus import generate_text, generated_corpus, read_corpus
from trilemma.precision.lab.presets import PRESETS, Experiment, preset_named, sweep
from trilemma.precision.lab.recipes import RECIPES, LabRecipe, recipe_named
from trilemma.precision.lab.records import Regime


def test_text_is_the_same_everywhere() -> None:
    text, source = generate_text()
    assert hashlib.sha256(text.encode()).hexdigest().startswith(TEXT_DIGEST)
    assert "written for this project" in source
    corpus = generated_corpus()
    assert len(corpus.training) == 9 * len(text) // 10
    assert corpus.vocabulary == 64
    assert corpus.training.max() < 64


TEXT_DIGEST = "8b012a37f68134dd"


def test_own_text(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question. " * 200, encoding="utf-8")
    corpus = read_corpus(file)
    assert corpus.vocabulary == 64
    assert corpus.source == "text.txt"
    file.write_text("short", encoding="utf-8")
    with pytest.raises(InputError, match="4,096"):
        read_corpus(file)
    file.write_bytes(b"\xff\xfe" * 4000)
    with pytest.raises(InputError, match="UTF-8"):
        read_corpus(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_corpus(tmp_path / "none.txt")
    file.write_text("".join(chr(0x4E00 + at) for at in range(5000)), encoding="utf-8")
    with pytest.raises(InputError, match="different characters"):
        read_corpus(file)


def test_every_recipe_of_the_build_is_there() -> None:
    def has(**settings: object) -> bool:
        return any(all(getattr(one, k) == v for k, v in settings.items()) for one in RECIPES.values())

    assert has(forward="bf16", backward="bf16", storage="fp32")
    assert has(forward="fp16", dynamic_loss_scale=True)
    assert has(forward="fp8_e4m3", backward="fp8_e4m3", scaling="none")
    assert has(forward="fp8_e4m3", backward="fp8_e5m2", scaling="none")
    assert has(scaling="current")
    for rule in ("max", "most_recent"):
        assert has(scaling="delayed", history_rule=rule)
    assert has(scaling="delayed", margin=2, warm_up_steps=20, overflow="nan")
    assert has(scaling="block")
    for rule in ("floor", "rceil"):
        assert has(scaling="mx", power_rule=rule)
    assert has(scaling="nvfp4", hadamard=True, stochastic_gradients=True)
    for scope in ("attention", "all but head", "all but head and ends"):
        assert has(scope=scope)
    for stochastic in (False, True):
        assert has(storage="fp8_e4m3", stochastic_storage=stochastic)
    assert has(storage="bf16", moments="bf16")


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="int8"):
        LabRecipe(name="x", says="", forward="int8")
    with pytest.raises(InputError, match="fp4_e2m1"):
        LabRecipe(name="x", says="", forward="fp8_e4m3", backward="fp8_e4m3", scaling="nvfp4")
    with pytest.raises(InputError, match="history 0"):
        LabRecipe(name="x", says="", history=0)
    with pytest.raises(InputError, match="learning rate"):
        Regime(learning_rate=0)
    with pytest.raises(InputError, match="width 40"):
        Regime(width=40)
    with pytest.raises(UnknownName, match="naive"):
        recipe_named("naiv")
    with pytest.raises(InputError, match="distinct"):
        Experiment(name="x", says="", recipes=("naive",), regimes=(Regime(),), seeds=(1, 1))


def test_presets_hold_the_reference_first() -> None:
    for preset in PRESETS.values():
        jobs = preset.jobs()
        assert jobs[0].recipe.name == "bf16"
        assert len(set(jobs)) == len(jobs)


def test_sweeps_combine() -> None:
    swept = sweep(preset_named("outliers"), learning_rates=[1e-3, 2e-3], clip_norms=[1.0, 1e9], steps=5)
    assert len(swept.regimes) == 4
    assert {regime.steps for regime in swept.regimes} == {5}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--preset", "outlier"], "outliers"),
        (["--recipes", "naive,curent"], "current"),
        (["--seeds", "a"], "'a'"),
        (["--seeds", "1,1"], "distinct"),
        (["--lr", "fast"], "fast"),
        (["--lr", "0"], "learning rate 0"),
        (["--steps", "0"], "--steps: 0"),
        (["--workers", "0"], "--workers: 0"),
        (["--text", "/nowhere/text.txt"], "/nowhere/text.txt"),
    ],
)
def test_mistakes_are_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] == "--text":
        pytest.importorskip("torch")
    assert main(["precision", "train-lab", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert named in shown.err
    assert shown.err.count("\n") == 1


def test_catalogue_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precision", "train-lab", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*RECIPES, *PRESETS))
    assert main(["precision", "train-lab", "--list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["recipes"]) == set(RECIPES)


def test_sub_commands_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precision"]) == 0
    assert "train-lab" in capsys.readouterr().out
    assert main(["precision", "trainlab"]) == 2
    assert "train-lab" in capsys.readouterr().err
