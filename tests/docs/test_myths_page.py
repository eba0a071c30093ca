"""Every example of docs/myths.md says what it shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "myths.md"


def test_every_claim_is_recomputed() -> None:
    """A claim is a heading in quotation marks, with an example below it."""
    claims = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(claims) >= 20
    assert [claim.partition("\n")[0] for claim in claims if not claim.startswith('"') or ">>> " not in claim] == []


def test_examples_say_what_they_show() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert tried > 40
