"""Weights on the machine where a command will run: known here by their name, under home folders too."""

from __future__ import annotations

import json

import pytest

from trilemma.cli.main import main


@pytest.mark.parametrize("path", ["~/models/Llama-3.1-8B", "/data/Llama-3.1-8B", "./Llama-3.1-8B", "../Llama-3.1-8B"])
def test_a_path_that_is_not_here_is_known_by_its_name(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--gpu", "h100-sxm", "--json", "--", "vllm", "serve", path, "--max-model-len", "4096"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert any(one["code"] == "model-elsewhere" and path in one["message"] for one in found["warnings"])
    assert found["inputs"]["model"]["parameters"] == 8030261248


def test_a_name_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--gpu", "h100-sxm", "--", "vllm", "serve", "~/models/own-thing"]) == 2
    assert "'own-thing' is no known model; give a path that exists or a hub id" in capsys.readouterr().err
