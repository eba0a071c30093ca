"""Recipes by device and framework: the gates of Transformer Engine, names that exist, savings that add up."""

from __future__ import annotations

import ast
import json
import math
import re

import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError, UnknownName
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans.recipes import recipe as training_recipe
from trilemma.precision.recipe import choose, exponent_limits, frameworks, misaligned, recipes


@pytest.mark.parametrize(
    ("gpu", "framework", "expected"),
    [
        ("h100-sxm", "te", "fp8-current"),
        ("b200", "te", "mxfp8"),
        ("b300-sxm", "megatron", "mxfp8"),
        ("rtx-5090", "te", "fp8-current"),
        ("l40s", "torchao", "fp8-current"),
        ("b200", "torchao", "fp8-current"),
    ],
)
def test_preferred_recipe(gpu: str, framework: str, expected: str) -> None:
    assert choose(find(gpu), framework).name == expected


@pytest.mark.parametrize(
    ("gpu", "recipe"), [("h100-sxm", "mxfp8"), ("h100-sxm", "nvfp4"), ("rtx-5090", "mxfp8"), ("l40s", "fp8-block")]
)
def test_recipes_that_a_device_lacks_are_refused_with_what_it_has(gpu: str, recipe: str) -> None:
    with pytest.raises(InputError, match=r"there: .*fp8-current"):
        choose(find(gpu), "te", recipe)


def test_old_cards_are_told_to_stay_in_bf16() -> None:
    with pytest.raises(InputError, match="train in BF16"):
        choose(find("a100-sxm-80gb"), "te")
    with pytest.raises(UnknownName):
        choose(find("h100-sxm"), "tensorflow")


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_snippets_use_only_names_of_the_stated_version(recipe: object) -> None:
    for key, text in recipe.snippets.items():  # type: ignore[attr-defined]
        known = set(frameworks()[key].names)
        if key == "deepspeed":  # trains Transformer Engine's layers
            known |= set(frameworks()["te"].names)
        assert not any(name in text for name in frameworks()[key].absent)
        if key == "megatron":
            flags = re.findall(r"--[a-z0-9-]+", text)
            values = [word for word in text.split() if not word.startswith("--") and not word.isdigit()]
            assert set(flags) | set(values) <= known
            continue
        tree = ast.parse(text)
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        keywords = {keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords}
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names = imported | keywords | attributes | (strings & {"rowwise", "tensorwise"})
        assert names <= known, names - known


def test_sides_that_are_no_multiple_are_named() -> None:
    mxfp8 = next(recipe for recipe in recipes() if recipe.name == "mxfp8")
    assert misaligned(load_model("llama-3.1-8b"), mxfp8) == []
    nvfp4 = next(recipe for recipe in recipes() if recipe.name == "nvfp4")
    assert any("2880" in side for side in misaligned(load_model("gpt-oss-20b"), nvfp4))


def test_exponents() -> None:
    limits = exponent_limits()
    assert limits["fp16"] == pytest.approx(math.log(65504))
    assert limits["fp32"] == pytest.approx(88.72, abs=0.01)


def test_command_says_what_it_saves(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["precision", "recipe", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--zero", "3", "--json", "--rlhf"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    saved = document["savings"]
    assert 1 < saved["speed_up"] < saved["speed_up_bound"]
    assert saved["speed_up"] < 2
    assert saved["weight_copy_bytes"] > 0
    assert document["rlhf"]["fp32"]


def test_torchao_snippet_runs_on_cpu() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    model = torch.nn.ModuleDict(
        {"body": torch.nn.Linear(32, 32, bias=False), "lm_head": torch.nn.Linear(32, 64, bias=False)}
    )
    snippet = next(recipe for recipe in recipes() if recipe.name == "fp8-current").snippets["torchao"]
    exec(snippet, {"model": model})
    assert type(model["body"]).__name__ == "Float8Linear"
    assert type(model["lm_head"]) is torch.nn.Linear


def test_recipes_go_by_the_names_of_both_commands() -> None:
    """``fit --precision`` knows the state that trains, ``precision recipe`` the way scales are taken: each takes both."""
    hopper = find("h100-sxm")
    assert choose(hopper, "te", "fp8").name == "fp8-current"
    assert choose(hopper, "te", "fp8-delayed").name == "fp8-delayed"
    assert training_recipe("fp8-current") == training_recipe("fp8-delayed") == training_recipe("fp8")


@pytest.mark.parametrize(("gpu", "code"), [("rtx-5090", 1), ("h100-sxm:8", 0)])
def test_a_training_that_its_card_cannot_hold_is_said_and_exits_1(
    gpu: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["precision", "recipe", "llama-3.1-8b", "--gpu", gpu, "--framework", "te", "--zero", "3"]
    assert main(words) == code
    assert ("DOES NOT FIT: the card has 31." in capsys.readouterr().out) is bool(code)
    assert main([*words, "--json"]) == code
    saved = json.loads(capsys.readouterr().out)["savings"]
    assert (saved["fits"], saved["bf16_fits"]) == (not code, not code)
    assert (saved["recipe_bytes"] <= saved["capacity_bytes"]) is not bool(code)
