"""Facts by version: what changed when, and how versions, forks and dates are read."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import pytest

from trilemma.engines.vllm.facts import FACTS, for_version
from trilemma.engines.vllm.kv_formats import kv_format
from trilemma.errors import InputError, UnknownName
from trilemma.formats import catalogue
from trilemma.versions import parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.19.0", (0, 19, 0)),
        ("v0.8.5.post1", (0, 8, 5)),
        ("0.20.2rc1.dev249+g1234 (fork)", (0, 20, 2)),
        ("0.22", (0, 22)),
    ],
)
def test_versions_are_read_by_their_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "nightly", "v", "x0.19"])
def test_text_without_a_version_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a version such as"):
        parse_version(text)


@pytest.mark.parametrize(
    ("date", "version"), [("2025-08-20", (0, 10)), ("2026-04-22", (0, 19)), ("2024-07", (0, 5)), ("2020-01-01", (0, 1))]
)
def test_a_date_means_the_release_of_that_day(date: str, version: tuple[int, ...]) -> None:
    assert FACTS.release_of(date) == version
    assert for_version(None, date=date).version == ".".join(map(str, version))


def test_dates_are_dates() -> None:
    with pytest.raises(InputError, match="is not a date such as"):
        FACTS.release_of("yesterday")


def test_a_fork_is_read_by_its_build_date() -> None:
    facts = for_version("0.11.2.dev280 (fork build of 2026-08-10)")
    assert facts.graphs_in_budget
    assert not facts.known
    assert facts.warnings[0].code == "fork-version"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.6.3", {"chunked_prefill": False, "hybrid_groups": False, "memory_fraction": 0.9}),
        ("0.8.5", {"chunked_prefill": True, "hybrid_groups": False}),
        ("0.10.0", {"hybrid_groups": True, "group_ratio": 1.0}),
        ("0.19.0", {"graphs_in_budget": False, "group_ratio": 1.5, "tokens_printed": "blocks"}),
        ("0.21.0", {"graphs_in_budget": True, "memory_fraction": 0.92, "tokens_printed": "concurrency"}),
        ("0.33.0", {"known": True, "graphs_in_budget": True, "packed_compressed": True}),
        ("0.40.0", {"known": False, "memory_fraction": 0.92}),
    ],
)
def test_what_changed_when(version: str, expected: dict[str, Any]) -> None:
    facts = for_version(version)
    assert {name: getattr(facts, name) for name in expected} == expected


def test_every_fact_has_a_source_and_versions_rise() -> None:
    data = tomllib.loads(files("trilemma.data").joinpath("engines", "vllm.toml").read_text(encoding="utf-8"))
    last: dict[str, tuple[int, ...]] = {}
    for row in data["fact"]:
        since = parse_version(row["since"])
        assert row["source"]
        assert since > last.get(row["name"], (0,)), row["name"]
        last[row["name"]] = since
    releases = [(parse_version(row["version"]), row["date"]) for row in data["release"]]
    assert releases == sorted(releases)
    assert releases[-1][0] == parse_version(data["newest"])


def test_cache_types() -> None:
    bf16 = catalogue.get("bf16")
    assert kv_format("auto", model_dtype=bf16) is bf16
    assert kv_format("fp8_ds_mla", model_dtype=bf16).bits == 8
    assert kv_format("int4_per_token_head", model_dtype=bf16).bits == 4
    assert kv_format("int8-per-token-head", model_dtype=bf16).scale_bits == 32
    with pytest.raises(UnknownName, match="unknown KV cache type 'fp7'"):
        kv_format("fp7", model_dtype=bf16)
