"""Exports load in the packages they are for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trilemma.models.resolve import load_model
from trilemma.precision.export import modules_of
from trilemma.precision.export.writers import export_text
from trilemma.precision.presets import preset_plan

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")


def text(preset: str, target: str) -> str:
    return export_text(modules_of(preset_plan(load_model("qwen3-32b"), preset)), target)[1]


@pytest.mark.parametrize(
    "preset", ["fp8", "fp8-block", "w8a8", "w4a16", "awq", "nvfp4", "nvfp4a16", "mxfp4", "mxfp8", "layered"]
)
def test_compressed_tensors_validates(preset: str) -> None:
    quantization = pytest.importorskip("compressed_tensors.quantization")
    config = quantization.QuantizationConfig.model_validate(json.loads(text(preset, "compressed-tensors")))
    assert config.config_groups


@pytest.mark.parametrize(
    ("preset", "target"), [("layered", "compressed-tensors"), ("nf4-double-quant", "bitsandbytes")]
)
def test_transformers_reads_the_config(preset: str, target: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    auto = pytest.importorskip("transformers.quantizers.auto")
    quantization = json.loads(text(preset, target))
    config = {"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 2, "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert transformers.AutoConfig.from_pretrained(tmp_path).quantization_config
    assert auto.AutoQuantizationConfig.from_dict(quantization).quant_method


@pytest.mark.parametrize("preset", ["w8a8", "fp8", "w4a16", "nvfp4a16"])
def test_torchao_reads_the_config(preset: str) -> None:
    config = pytest.importorskip("torchao.core.config")
    assert type(config.config_from_dict(json.loads(text(preset, "torchao")))).__name__ == "FqnToConfig"
