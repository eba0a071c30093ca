"""A precision plan on the screen: tables add up to the document, formats explain their own bits, budgets say what is left."""

from __future__ import annotations

import re
from functools import cache

import pytest

from asking import document, screen
from trilemma.formats import catalogue
from trilemma.quantities import GIB

PLANS = (
    "precision plan qwen3-32b --gpu rtx-4090 --context 8192",
    "precision plan llama-3.1-70b --gpu h100-sxm --context 8192",
    "precision plan gpt-oss-20b --gpu rtx-3090 --context 8192",
)
answer = cache(document)
told = cache(screen)


def cells(line: str) -> list[str]:
    return [one for one in re.split(r" {2,}", line.strip()) if one]


def rows(words: str) -> list[list[str]]:
    lines = told(words).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("tensors "))
    end = next(at for at, line in enumerate(lines) if line.startswith("weights "))
    return [cells(line) for line in lines[at + 2 : end]]


@pytest.mark.parametrize("words", PLANS)
def test_the_table_adds_up_to_the_document(words: str) -> None:
    found = answer(words)
    groups = found["groups"]
    sums: dict[tuple[str, str], list[int]] = {}
    for one in groups:
        part = sums.setdefault((one["weights"], one["activations"]), [0, 0])
        part[0] += one["elements"]
        part[1] += one["bytes"]
    shown: dict[tuple[str, str], list[float]] = {}
    others = 0
    for row in rows(words):
        elements, gigabytes, bits = int(row[-3].replace(",", "")), float(row[-2].replace(",", "")), float(row[-1])
        assert bits == pytest.approx(8 * gigabytes * 1e9 / elements, rel=0.02, abs=0.1) or gigabytes < 0.05
        if row[1] == "as it is":
            others += elements
        else:
            part = shown.setdefault((row[1], row[2]), [0, 0.0])  # type: ignore[list-item]
            part[0] += elements
            part[1] += gigabytes * 1e9
    assert {key: value[0] for key, value in shown.items()} == {key: value[0] for key, value in sums.items()}
    for key, value in shown.items():
        assert value[1] == pytest.approx(sums[key][1], rel=0.01, abs=5e6)
    assert others == sum(one["elements"] for one in found["others"].values())
    total = sum(one["bytes"] for one in groups) + sum(one["bytes"] for one in found["others"].values())
    assert total == found["weights_bytes"]
    line = next(one for one in told(words).splitlines() if one.startswith("weights "))
    assert f"({total / GIB:,.2f} GiB, {total:,} bytes)" in line
    parameters = sum(one["elements"] for one in (*groups, *found["others"].values()))
    assert float(re.findall(r"([\d.]+) bits per parameter", line)[0]) == pytest.approx(8 * total / parameters, abs=1e-3)


@pytest.mark.parametrize("words", PLANS)
def test_formats_explain_their_own_bits(words: str) -> None:
    text = " ".join(told(f"{words} --explain").split())
    used = {one["weights"] for one in answer(words)["groups"]}
    for name in used:
        fmt = catalogue.get(name)
        said = re.search(
            rf" {re.escape(name)}: ([\d.]+) bits, beside them (.*?) (?=\w+: [\d.]+ bits,|from |rule 1:)", f"{text} "
        )
        assert said is not None, name
        assert float(said[1]) == fmt.bits
        scaled = re.match(r"([\d.]+)-bit scale and ([\d.]+)-bit zero point per (\d+) elements", said[2])
        if fmt.granularity == "group" and fmt.scale_bits:
            assert scaled is not None, said[2]
            assert fmt.bits + (float(scaled[1]) + float(scaled[2])) / int(scaled[3]) == pytest.approx(
                fmt.effective_bits, rel=1e-3
            )
        else:
            assert scaled is None
    rules = answer(words)["plan"]["rules"]
    assert len(re.findall(r"rule \d+: ", text)) in (len(rules), len(rules) - 1)
    assert "every one assigned" in text
    assert "where the bytes come from" not in told(words)


@pytest.mark.parametrize("words", PLANS)
def test_what_is_left_of_the_budget(words: str) -> None:
    budget = answer(words)["budget"]
    line = next(one for one in told(words).splitlines() if one.startswith("per GPU "))
    figures = [float(one.replace(",", "")) for one in re.findall(r"[\d,]+\.\d+", line)]
    expected = [
        budget[name] / GIB for name in ("usable_bytes", "kv_cache_bytes", "overhead_bytes", "left_for_weights_bytes")
    ]
    assert figures[:4] == pytest.approx(expected, abs=0.006)
    assert budget["left_for_weights_bytes"] == pytest.approx(
        budget["usable_bytes"] - budget["kv_cache_bytes"] - budget["overhead_bytes"], abs=2
    )
