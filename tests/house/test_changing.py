"""What docs/changing.md says of additions: the places exist, and an accelerator is one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trilemma.hardware import catalogue

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "changing.md").read_text(encoding="utf-8")


def test_every_place_named_is_there() -> None:
    places = re.findall(r"`((?:src|scripts)/[\w./]+)`", PAGE)
    assert len(places) > 15
    assert [one for one in places if not (ROOT / one).exists()] == []


def test_an_accelerator_without_its_row_in_the_index_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = catalogue.find("h200-sxm")
    monkeypatch.setattr(catalogue, "read_data", lambda _name: {})
    catalogue._entries.cache_clear()
    try:
        assert catalogue.find("h200-sxm") == before
    finally:
        catalogue._entries.cache_clear()
