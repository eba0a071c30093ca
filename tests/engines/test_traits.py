"""Engines are known by their data files, and rooms above ask for what one can do, never for its name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trilemma
from trilemma import engines
from trilemma.commands.flags import FlagTable
from trilemma.data.digest import DATA
from trilemma.data.files import read_data
from trilemma.engines.deployment.facts import of_engine
from trilemma.engines.traits import every, those
from trilemma.memory.traits import implementation_facts
from trilemma.plans import frameworks
from trilemma.plans.recipes import optimizer, recipe

HOUSE = Path(trilemma.__file__).parent


def test_every_data_file_with_traits_is_a_package_and_an_engine() -> None:
    files = {path.stem for path in (DATA / "engines").glob("*.toml") if "\n[traits]\n" in path.read_text()}
    assert files == {one.package for one in every().values()}
    for name, one in every().items():
        assert engines.get(name).name == name == one.name
        assert (HOUSE / "engines" / one.package).is_dir()
        assert isinstance(engines.get(name).flags(), FlagTable)  # type: ignore[attr-defined]


def test_names_and_aliases_mean_one_engine_each() -> None:
    words = [word for one in every().values() for word in (one.name, *one.aliases)]
    assert len(words) == len(set(words))
    assert all(
        engines.canonical(word.upper()) == one.name for one in every().values() for word in (one.name, *one.aliases)
    )


@pytest.mark.parametrize("name", every())
def test_traits_agree_with_the_tables_beside_them(name: str) -> None:
    one, deployment = every()[name], of_engine(name)
    assert one.deploys == bool(deployment) == (HOUSE / "engines" / one.package / "deploy.py").exists()
    assert one.disaggregates == ("disaggregated" in deployment)
    assert one.reads_logs == (HOUSE / "engines" / one.package / "log.py").exists()
    assert one.vendors is None or one.vendors_source
    assert (one.benchmark is None) or {"{model}", "{isl}", "{osl}", "{load}"} <= set(one.benchmark.command.split())


def test_known_traits() -> None:
    assert tuple(every()) == (
        "vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers-serve", "ollama", "lmdeploy", "mlx-lm",
        "lm-studio",
    )  # fmt: skip
    assert those("disaggregates") == ("vllm", "sglang", "tensorrt-llm")
    assert those("mixed_cards") == ("llama.cpp", "ollama")
    assert those("cache_in_slots") == ("llama.cpp", "ollama", "lm-studio")
    assert [every()[name].in_turn for name in every()] == [False, False, False, True, True, True, False, True, True]


def test_a_table_read_alone_is_what_the_whole_file_holds() -> None:
    from trilemma.data.files import read_table

    for one in every().values():
        whole = read_data(f"engines/{one.package}.toml")
        assert read_table(f"engines/{one.package}.toml", "traits") == whole["traits"]
        assert read_table(f"engines/{one.package}.toml", "deployment") == whole.get("deployment", {})


#: Where a name may stand, and why.
NAMED = {
    "versions.py": "the engine that is meant where none is named, and builds in place of versions",
    "measured/serving/memory/fit.py": "fits the coefficients of one engine",
    "timing/kernels/ladder.py": "words of tables of kernels, below the engines",
    "measured/training/classes.py": "a class of rows without one framework, whose tables are many",
    "measured/activations/judge.py": "counts what one library's own model code saves",
    "ask/piloted.py": "runs one library's models on this machine",
}
#: The engines themselves, the words of launchers that people paste, data.
BELOW = ("engines", "commands", "data")


def names_in(path: Path, known: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower() in known:
            yield f"{path.relative_to(HOUSE).as_posix()}:{node.lineno} {node.value}"


def test_no_room_asks_for_an_engine_or_framework_by_name() -> None:
    known = {*every(), *frameworks.every()}
    rooms = [path for path in HOUSE.rglob("*.py") if path.relative_to(HOUSE).parts[0] not in BELOW]
    assert len(rooms) > 300
    found = [hit for path in rooms for hit in names_in(path, known)]
    assert [hit for hit in found if hit.split(":")[0] not in NAMED] == []
    assert {hit.split(":")[0] for hit in found} == set(NAMED), "a place that names none any more leaves the list"


def test_every_framework_has_its_packages_and_a_recipe_that_is_known() -> None:
    assert frameworks.those("reader") == (
        "megatron",
        "torchtitan",
        "deepspeed",
        "accelerate",
        "transformers",
        "axolotl",
        "automodel",
    )
    assert frameworks.those("writer") == ("megatron", "torchtitan", "deepspeed", "accelerate")
    assert frameworks.those("cuts") == ("megatron", "torchtitan", "automodel")
    assert (frameworks.default_for("full"), frameworks.default_for("adapters")) == ("megatron", "transformers")
    for one in frameworks.every().values():
        assert one.reader is None or (HOUSE / "engines" / one.reader / "read.py").exists()
        assert one.writer is None or (HOUSE / "engines" / one.writer / "deploy.py").exists()
        assert one.vendors_source
        habits = (one.habits, one.habits_of_adapters)
        names = {name for habit in habits for name in (*habit.recipes, *habit.narrow_recipes)}
        assert all(recipe(name) for name in (*names, one.plain_recipe or one.usual_recipe, one.usual_recipe))
        assert all(optimizer(habit.optimizer) for habit in habits)
        assert implementation_facts(one.name)["logit_bytes"]


def test_frameworks_differ_where_their_makers_do() -> None:
    """DeepSpeed's pipeline engine refuses ZeRO-2 and ZeRO-3, FSDP2 runs under one; torchtitan's stages are of one size."""
    known = frameworks.every()
    assert [name for name in known if not known[name].shards_beside_pipeline] == ["megatron", "deepspeed"]
    assert frameworks.those("equal_stages") == ("torchtitan",)
    assert [known["accelerate"].habits.stages, known["accelerate"].habits_of_adapters.stages] == [(3,), (0, 3)]
    assert frameworks.names()["fsdp2"] == "torchtitan"
    # One that no reader of its own stands for may be asked for all the same.
    assert frameworks.names()["litgpt"] == "litgpt"
