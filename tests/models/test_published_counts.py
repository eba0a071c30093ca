"""Parameter counts against what publishers state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trilemma.models.parameters import by_role, count
from trilemma.models.resolve import load_model

_TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "published_counts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "published", "how", "source"), _TABLE["exact"], ids=[row[0] for row in _TABLE["exact"]]
)
def test_total_is_the_published_one(name: str, published: int, how: str, source: str) -> None:
    found = count(load_model(name))
    total = found.total + (found.mtp if how == "mtp" else 0)
    assert abs(total / published - 1) < 1e-3, f"{total:,} beside {published:,} of {source}"


@pytest.mark.parametrize(
    ("name", "total", "total_width", "active", "active_width", "source"),
    _TABLE["rounded"],
    ids=[row[0] for row in _TABLE["rounded"]],
)
def test_total_and_active_round_to_the_published_ones(
    name: str, total: float, total_width: float, active: float, active_width: float, source: str
) -> None:
    found = count(load_model(name))
    assert abs(found.total - total) <= total_width, source
    assert abs(found.active - active) <= active_width, source


def test_the_table_is_long_and_cited() -> None:
    assert len(_TABLE["exact"]) >= 40
    assert all(len(row[-1]) > 10 for row in _TABLE["exact"] + _TABLE["rounded"])


def test_openai_leaves_the_embedding_out_of_active_parameters() -> None:
    """gpt-oss model card (arXiv 2508.10925), table 1: 5.13B and 3.61B active without the embedding."""
    for name, active in (("gpt-oss-120b", 5.13e9), ("gpt-oss-20b", 3.61e9)):
        found = count(load_model(name))
        assert abs(found.active - found.embedding - active) < 0.01e9


def test_mtp_stays_apart() -> None:
    """DeepSeek-V3 README_WEIGHTS.md: the MTP module has 11.5B parameters of its own."""
    found = count(load_model("deepseek-v3"))
    assert 11.4e9 < found.mtp < 11.7e9


def test_roles_add_up() -> None:
    for name in ("deepseek-v3", "gemma-3-27b", "qwen3.5-35b-a3b", "nemotron-3-super-120b-a12b", "falcon-7b"):
        model = load_model(name)
        found = count(model)
        assert sum(elements for elements, _ in by_role(model).values()) == found.total + found.mtp
        assert sum(stored for _, stored in by_role(model).values()) == sum(tensor.bytes for tensor in model.tensors)
