"""Exports: read back by this project's own readers they mean the plan; what a target lacks is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.models.architecture import Model, Quantization
from trilemma.models.quantized import read_quantization, restate
from trilemma.models.resolve import load_model
from trilemma.precision.export import TARGETS, modules_of
from trilemma.precision.export.writers import export_text
from trilemma.precision.patterns import read_rules
from trilemma.precision.plan import plan_from_rules
from trilemma.precision.presets import preset_plan


@pytest.fixture(scope="module")
def qwen() -> Model:
    return load_model("qwen3-32b")


def quantization_of(config: dict[str, Any], model: Model) -> Quantization:
    found = read_quantization({"quantization_config": config}, dtype=model.dtype)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["qwen3-32b", "qwen3-30b-a3b", "llama-3-70b"])
@pytest.mark.parametrize("preset", ["fp8", "fp8-block", "w8a8", "w4a16", "nvfp4", "mxfp8", "layered"])
def test_compressed_tensors_means_the_plan(name: str, preset: str) -> None:
    plan = preset_plan(load_model(name), preset)
    config = json.loads(export_text(modules_of(plan), "compressed-tensors")[1])
    model = load_model(name)
    again = restate(model, quantization_of(config, model))
    planned = {tensor.name: (tensor.format.bits, tensor.format.granularity) for tensor in plan.model.tensors}
    assert {tensor.name: (tensor.format.bits, tensor.format.granularity) for tensor in again.tensors} == planned


def test_plans_that_differ_by_layer_name_the_layers(qwen: Model) -> None:
    rules = [
        {"roles": ["ffn"], "layers": ["0-2", "-1"], "weights": "int8_channel", "activations": "int8"},
        {"roles": ["ffn"], "weights": "int4_g128"},
        {"roles": ["*"], "weights": "own"},
    ]
    plan = plan_from_rules(qwen, read_rules(rules, what="test"), name="test")
    config = json.loads(export_text(modules_of(plan), "compressed-tensors")[1])
    assert config["format"] == "mixed-precision"
    assert [group["format"] for group in config["config_groups"].values()] == ["int-quantized", "pack-quantized"]
    targets = config["config_groups"]["group_0"]["targets"]
    hits = [
        module
        for module in (f"model.layers.{at}.mlp.up_proj" for at in range(64))
        if any(re.search(t[3:], module) for t in targets)
    ]
    assert hits == [f"model.layers.{at}.mlp.up_proj" for at in (0, 1, 2, 63)]
    again = restate(qwen, quantization_of(config, qwen))
    assert [t.format.bits for t in again.tensors] == [t.format.bits for t in plan.model.tensors]


@pytest.mark.slow
def test_recipes_and_configs_of_toolkits(qwen: Model) -> None:
    modules = modules_of(preset_plan(qwen, "fp8"))
    recipe = yaml.safe_load(export_text(modules, "llm-compressor")[1])
    modifier = recipe["default_stage"]["default_modifiers"]["QuantizationModifier"]
    assert modifier["config_groups"]["group_0"]["input_activations"]["strategy"] == "token"
    assert modifier["ignore"] == ["re:^lm_head$"]
    layers = json.loads(export_text(modules, "autoround")[1])["layer_config"]
    assert layers["lm_head"]["bits"] == 16
    assert layers["model.layers.63.mlp.down_proj"]["bits"] == 8
    quantizers = yaml.safe_load(export_text(modules, "modelopt")[1])["quantize"]["quant_cfg"]
    assert quantizers[0] == {"quantizer_name": "*", "enable": False}
    assert len(quantizers) == 1 + 2 * 64 * 7
    torchao = json.loads(export_text(modules, "torchao")[1])
    assert len(torchao["_data"]["fqn_to_config"]) == 7


def test_llama_quantize_settles_every_tensor() -> None:
    model = load_model("llama-3-8b")
    plan = preset_plan(model, "q4_k_m")
    text = export_text(modules_of(plan), "llama-quantize")[1]
    assert "--output-tensor-type q6_k" in text
    types = [re.compile(found[0]) for found in re.findall(r"--tensor-type '([^=]+)=(\w+)'", text)]
    for layer in range(32):
        for tensor in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            assert sum(bool(one.search(f"blk.{layer}.{tensor}")) for one in types) == 1


@pytest.mark.parametrize(
    ("preset", "target"),
    [("q4_k_m", "compressed-tensors"), ("nf4", "torchao"), ("fp8", "llama-quantize"), ("layered", "bitsandbytes"),
     ("fp8-block", "torchao"), ("nf4", "autoround"), ("16-bit", "bitsandbytes")],
)  # fmt: skip
def test_what_a_target_lacks_is_refused(qwen: Model, preset: str, target: str) -> None:
    with pytest.raises(InputError):
        export_text(modules_of(preset_plan(qwen, preset)), target)


@pytest.mark.parametrize(
    ("preset", "engine", "flags"),
    [("fp8", "vllm", "--quantization compressed-tensors --kv-cache-dtype fp8_e4m3"),
     ("nf4", "sglang", "--quantization bitsandbytes --kv-cache-dtype fp8_e4m3"),
     ("q6_k", "vllm", "--quantization gguf --kv-cache-dtype fp8_e4m3"), ("16-bit", "vllm", "--kv-cache-dtype fp8_e4m3")],
)  # fmt: skip
def test_flags_of_engines(preset: str, engine: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precision", "export", "qwen3-32b", "--preset", preset, "--kv-dtype", "fp8", "--to", engine]) == 0
    assert capsys.readouterr().out.strip() == flags


def test_files_are_written(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    for target in TARGETS:
        preset = {"bitsandbytes": "nf4-double-quant", "llama-quantize": "q4_k_m"}.get(target, "w8a8")
        assert main(["precision", "export", "qwen3-4b", "--preset", preset, "--to", target, "-o", str(tmp_path)]) == 0
    assert len(set(capsys.readouterr().out.split())) == len(TARGETS)
    assert main(["precision", "export", "qwen3-4b", "--preset", "fp8", "--to", "abacus"]) == 2
