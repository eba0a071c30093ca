"""Coefficients of speed are rows: one more is one more row and the formula that reads it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import trilemma
from trilemma.hardware.catalogue import find
from trilemma.timing import coefficients as rooms
from trilemma.timing.coefficients import at_datasheet, coefficients_for, fitted_terms, scaled, spec_sheet
from trilemma.timing.serving_terms import LEVELS, priors

SOURCE = "\n".join(path.read_text("utf-8") for path in sorted(Path(trilemma.__file__).parent.rglob("*.py")))


def forget() -> None:
    for remembered in (rooms.spec_sheet, rooms._coefficients, fitted_terms, priors):
        remembered.cache_clear()


@pytest.fixture
def one_more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A coefficient with a term of its own, put into the data file alone."""
    data = copy.deepcopy(dict(spec_sheet()))
    data["host"]["detokenize_s"] = 3e-6
    data["terms"]["detokenize"] = {"scales": ["detokenize_s"], "width": 0.5, "kind": "host"}
    forget()
    monkeypatch.setattr(rooms, "read_data", lambda _: data)
    yield
    monkeypatch.undo()
    forget()


@pytest.mark.usefixtures("one_more")
def test_a_row_is_a_coefficient_and_a_term() -> None:
    plain = coefficients_for(find("h100-sxm"), "vllm")
    assert plain.detokenize_s == 3e-6
    assert scaled(plain, {"detokenize": 2.0}).detokenize_s == 6e-6
    assert at_datasheet(plain).detokenize_s == 0.0
    widths = dict(zip(LEVELS, priors().widths["detokenize"], strict=True))
    assert (widths["shared"], widths["format"]) == (0.5, 0.0)
    assert widths["engine"] == pytest.approx(0.275)


def test_every_coefficient_is_read_by_a_formula() -> None:
    for name in coefficients_for(find("h100-sxm")).numbers:
        assert re.search(rf"\.{name}\b", SOURCE), name


def test_every_coefficient_that_a_machine_is_asked_for_is_there() -> None:
    known = coefficients_for(find("h100-sxm"))
    asked = set(re.findall(r"machine\.coefficients\.(\w+)", SOURCE))
    assert len(asked) >= 12
    for name in asked:
        assert hasattr(known, name), name


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="no coefficient 'step' in spec_sheet"):
        _ = coefficients_for(find("h100-sxm")).step


def test_an_engine_and_a_maker_have_their_own() -> None:
    """ggml-metal multiplies up to 31 routed tokens row by row (ne21_mm_id_min = 32), CUDA one; other engines none."""
    assert coefficients_for(find("h100-sxm"), "vllm").row_by_row_tokens == 0
    assert coefficients_for(find("h100-sxm"), "llama.cpp").row_by_row_tokens == 1
    assert coefficients_for(find("m3-ultra"), "llama.cpp").row_by_row_tokens == 31
    assert (
        coefficients_for(find("h100-sxm"), "llama.cpp").kernel_s > coefficients_for(find("h100-sxm"), "vllm").kernel_s
    )


def test_a_card_has_its_own() -> None:
    """Weights expanded to 16 bits run on data-centre Blackwell with the instructions of Hopper, elsewhere at full share."""
    assert coefficients_for(find("b300-sxm")).expanded_matmul == 0.25
    assert coefficients_for(find("h100-sxm")).expanded_matmul == 1.0
