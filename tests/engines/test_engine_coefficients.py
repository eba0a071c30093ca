"""Coefficients of memory by engine and version: every known version has all of them, and each says where it comes from."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest

from trilemma import engines
from trilemma.data.digest import DATA
from trilemma.engines.coefficients import NOT_NUMBERS, at, in_force, shipped
from trilemma.engines.engine import Engine
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions

FOLDER = DATA / "coefficients" / "serving_memory"
NAMES = engines.readable()


def _facts_file(name: str) -> str:
    return f"{engines.get(name).package.rpartition('.')[2]}.toml"


def _versions(name: str) -> list[str]:
    """Every version at which a release, a fact or a coefficient of the engine begins."""
    facts = tomllib.loads((DATA / "engines" / _facts_file(name)).read_text(encoding="utf-8"))
    rows = tomllib.loads((FOLDER / _facts_file(name)).read_text(encoding="utf-8"))
    begun = [row["since"] for table in rows.values() for row in table if "since" in row]
    return [
        facts["newest"],
        *(row["version"] for row in facts["release"]),
        *(r["since"] for r in facts["fact"]),
        *begun,
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_row_has_a_source_and_a_date(path: Path) -> None:
    for name, rows in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for row in rows:
            assert row["source"], name
            assert row["as_of"], name


@pytest.mark.parametrize("name", NAMES)
def test_every_known_version_has_every_fact_and_coefficient(name: str) -> None:
    engine: Engine = engines.get(name)
    newest = engine.facts(None)
    for version in dict.fromkeys(_versions(name)):
        assert engine.facts(version).keys() == newest.keys(), version
        start = engine.start_up(
            model=load_model("llama-3.1-8b"), accelerator=find("h100-sxm"), layout=Layout(), options=ServeOptions(context=4096),
            version=version,
        )  # fmt: skip
        assert float(start.pool.available_bytes) > 0, version


def test_a_newer_version_changes_graphs_by_one_row() -> None:
    """A row of one number changes that number from its version on, and nothing else at any version."""
    rows = copy.deepcopy(dict(shipped("vllm.toml")))
    rows["graphs"].append({"since": "0.34", "fixed_gib": 0.5, "source": "a later log", "as_of": "2026-12-24"})
    assert at(rows, (0, 33), engine="vllm") == in_force("vllm.toml", (0, 33), engine="vllm")
    before, now = in_force("vllm.toml", (0, 34), engine="vllm"), at(rows, (0, 34), engine="vllm")
    changed = {
        f"{table}.{name}" for table, numbers in now.items() for name, value in numbers.items()
        if name not in NOT_NUMBERS and value != before[table][name]
    }  # fmt: skip
    assert changed == {"graphs.fixed_gib"}
