"""``trilemma models``: what people and programs read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.models.resolve import load_model
from trilemma.report.models import kv_bytes_per_token, layers_by_kind, model_document


def test_json_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "deepseek-v3.2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"]["total"] == 671_877_944_064
    assert document["parameters"]["active"] < 39e9
    assert document["kv_bytes_per_token"] == 61 * (1152 + 132)
    assert document["layers"] == {"latent": 61}
    assert document["unknown_fields"] == []
    assert document["quantization"]["method"] == "fp8"
    assert sum(row["parameters"] for row in document["roles"]) == (
        document["parameters"]["total"] + document["parameters"]["mtp"]
    )


def test_several_models_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "llama-3.1-8b", "gemma-3-27b", "--json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [document["layers"] for document in documents] == [{"full": 32}, {"sliding": 52, "full": 10}]


def test_text_says_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qwen3.5-35b-a3b", "--explain"]) == 0
    text = capsys.readouterr().out
    for part in ("total", "active per text token", "vision tower", "MTP", "gated_delta_net", "ceil(2 KV heads / tp)"):
        assert part in text


def test_the_catalogue_lists_names_and_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 60
    assert any(line.startswith("llama-3.1-8b ") and "meta-llama/Llama-3.1-8B" in line for line in lines)
    assert main(["models", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["models"]) == len(lines)


def test_unknown_fields_and_assumptions_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "org--name"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100, "extra_memory_heads": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["models", "org/name", "--models", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "extra_memory_heads" in text
    assert "torch_dtype is not given" in text


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": -1}', encoding="utf-8")
    assert main(["models", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_strides_count_in_the_rate() -> None:
    """Two layers with a window alone count while it fills; the others store an entry per stride and an indexer key."""
    model = load_model("deepseek-v4-flash")
    kinds = layers_by_kind(model)
    assert kinds == {"window": 2, "compressed": 41}
    fours = sum(1 for layer in model.layers if getattr(layer.mixer, "stride", 0) == 4)
    assert kv_bytes_per_token(model) == 2 * 1024 + fours * (1024 + 132) / 4 + (41 - fours) * 1024 / 128
    assert model_document(model)["mtp_layers"] == 1
