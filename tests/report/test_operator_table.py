"""The operator table on screen: what is shown sums to what is shown, short by default, whole when asked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.cli.main import main
from trilemma.report.operators import rounded_to_sum

FIT = ["fit", "llama-3.1-70b", "--gpu", "h200-sxm:8", "--isl", "4096", "--osl", "1024", "--concurrency", "64"]


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=12), st.integers(0, 4))
def test_rounded_values_sum_to_the_rounded_sum(values: list[float], digits: int) -> None:
    rounded = rounded_to_sum(values, digits)
    assert sum(rounded) == pytest.approx(round(sum(values) * 10**digits) / 10**digits, abs=1e-6)
    assert all(abs(one - value) <= 10**-digits * (1 + 1e-6) for one, value in zip(rounded, values, strict=True))


def table(text: str) -> list[str]:
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("a token at batch"))
    end = next(at for at, line in enumerate(lines) if line.startswith("TPOT"))
    return lines[start : end + 1]


def milliseconds(line: str) -> float:
    return float(re.findall(r"\s(\d[\d,]*\.?\d*)", line)[0].replace(",", ""))


@pytest.mark.parametrize("more", [[], ["--explain"]], ids=["short", "whole"])
@pytest.mark.parametrize("many", ["1", "64", "500"])
def test_lines_sum_to_tpot_as_shown(more: list[str], many: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT[:-1], many, *more]) == 0
    text = capsys.readouterr().out
    rows = [re.sub(r"^\d+ shorter", "shorter", line) for line in table(text)[2:]]
    assert sum(milliseconds(row) for row in rows[:-1]) == pytest.approx(milliseconds(rows[-1]), abs=1e-9)
    first = " ".join(text.split("first token ")[-1].split("cost")[0].split())
    total, _, parts = first.partition(" = ")
    shown = [float(part.rsplit(" ", 1)[1].replace(",", "")) for part in parts.split(" + ")]
    assert sum(shown) == pytest.approx(float(total.split()[0].replace(",", "")), abs=1e-9)


def test_default_is_a_glance_and_explain_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    main(FIT)
    short = capsys.readouterr().out
    assert len(table(short)) <= 8
    assert "roof ms" not in short
    assert "carried over: vllm nvidia-h200-sxm" in " ".join(short.split())
    main([*FIT, "--explain"])
    whole = capsys.readouterr().out
    assert "roof ms" in whole
    assert "shorter" not in whole
    assert "decode step" in whole
    assert max(map(len, table(whole))) <= 100


def test_a_line_above_its_roof_is_pointed_at(capsys: pytest.CaptureFixture[str]) -> None:
    main([*FIT[:3], "h100-sxm:8", *FIT[4:], "--engine", "sglang"])
    text = " ".join(capsys.readouterr().out.split())
    above = [line for line in text.split("bound by")[2].split(" roof:")[0].split("%") if line]
    assert ("above 100 %" in text) == any(int(re.findall(r"(\d+)$", one.strip())[0]) > 100 for one in above[:-1])


def test_training_and_plans_that_do_not_start_have_no_operators(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "llama-3.1-70b", "--gpu", "rtx-4090"])
    assert "a token at batch" not in capsys.readouterr().out
