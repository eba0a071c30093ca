"""``trilemma kernels``: every kernel with its source, sums by line beside the estimate, and the measured backend's absence."""

from __future__ import annotations

import json

import pytest

from trilemma.cli.main import main
from trilemma.measured.kernels import silicon

ASKED = ["kernels", "llama-3.1-70b-fp8", "--gpu", "h200-sxm:4", "--batch", "64", "--cached", "4608"]


def test_lines_sum_their_kernels_and_say_where_each_comes_from(capsys):
    assert main([*ASKED, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/kernels@1"
    for line in document["lines"]:
        own = [kernel for kernel in document["kernels"] if kernel["line"] == line["line"]]
        assert line["kernels_s"] == pytest.approx(sum(kernel["count"] * kernel["seconds"] for kernel in own), rel=1e-6)
        assert line["estimate_s"] > 0
        assert 0.4 < line["kernels_s"] / line["estimate_s"] < 2.5
    assert all(kernel["source"].startswith("measured: ") for kernel in document["kernels"])
    assert all(0 < kernel["low"] <= kernel["seconds"] <= kernel["high"] for kernel in document["kernels"])


def test_a_card_without_measurements_says_the_rung_it_stands_on(capsys):
    assert main(["kernels", "llama-3.1-8b", "--gpu", "mi300x", "--batch", "8", "--cached", "1024"]) == 0
    shown = capsys.readouterr().out
    assert "spec sheet: datasheet of" in shown
    assert "kernel launches" in shown


def test_the_measured_backend_is_asked_for_where_it_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr(silicon, "_data_folder", lambda: None)
    assert main([*ASKED, "--measured"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "trilemma[silicon]" in error


def test_batch_and_context_are_never_guessed(capsys):
    assert main(ASKED[:4]) == 2
    assert "--batch" in capsys.readouterr().err
