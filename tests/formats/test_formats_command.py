"""``trilemma formats``: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json

import pytest

from trilemma.cli.main import main
from trilemma.formats.catalogue import get, names
from trilemma.hardware.catalogue import find
from trilemma.report.formats import effective_formula, in_hardware, show, slower_than_bf16


def test_the_list_names_every_format_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    first_words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    for name in names():
        assert first_words.count(name) == 1


def test_explain_shows_source_and_formula(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "4 + 16 / 128 + 4 / 128 = 4.15625" in out
    assert "arXiv:2209.05433" in out


def test_one_format_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "fp8_e4m3fnuz"]) == 0
    out = capsys.readouterr().out
    for fact in ("240", "bias 8", "CDNA3 gfx942", "Pitfalls", "arXiv:2206.02915", "signal to noise"):
        assert fact in out
    assert "Hopper" not in out


def test_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--compare", "nvfp4", "mxfp4", "int8"]) == 0
    out = capsys.readouterr().out
    assert out.index("mxfp4") < out.index("nvfp4")
    assert "not compared (no scale, or no encoder here): int8" in out
    assert main(["formats", "--compare", "int8"]) == 0
    assert "nothing to compare" in capsys.readouterr().out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/formats@1"
    assert [entry["name"] for entry in document["formats"]] == list(names())
    assert main(["formats", "nvfp4", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["formats"]
    assert entry["effective_bits"] == 4.5
    assert entry["tensor_bits"] == 32
    assert "nvidia-b200-sxm-180gb" in entry["accelerators"]
    assert entry["sqnr_db"]["normal"] == pytest.approx(20.4, abs=0.3)
    assert "smallest_subnormal" in entry
    assert "block_bytes" not in entry


def test_unknown_name_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "nvpf4"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "nvfp4" in captured.err


@pytest.mark.parametrize(
    ("name", "gpu", "there"),
    [
        ("fp8_e4m3", "h100-sxm", True),
        ("fp8_e4m3", "mi300x", False),
        ("fp8_e4m3fnuz", "mi300x", True),
        ("fp8_e4m3", "mi355x", True),
        ("mxfp8", "b200", True),
        ("mxfp8", "h200-sxm", False),
        ("nvfp4", "mi355x", False),
        ("int4_g128", "h100-sxm", False),
    ],
)
def test_hardware(name: str, gpu: str, there: bool) -> None:
    assert in_hardware(get(name), find(gpu)) is there


def test_int8_is_slow_on_blackwell_ultra() -> None:
    assert slower_than_bf16(get("int8"), find("b300-sxm"))
    assert not slower_than_bf16(get("int8"), find("h100-sxm"))


def test_numbers_read_well() -> None:
    assert [show(value) for value in (None, 0, 448, 57344, 0.015625, 2.0**-16, 2.0**127, 3.4028e38)] == (
        ["–", "0", "448", "57,344", "0.015625", "2^-16", "2^127", "3.403e+38"]
    )
    assert effective_formula(get("q4_k")) == "144 bytes · 8 / 256 elements = 4.5"
    assert effective_formula(get("bf16")) == "16"
