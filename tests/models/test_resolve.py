"""Spellings of names, places where models are looked for, and in which order."""

from __future__ import annotations

import json

import pytest

from trilemma.errors import InputError, UnknownName
from trilemma.models import catalogue
from trilemma.models.resolve import load_model, resolve_name

CONFIG = {key: value for key, value in catalogue.config("qwen3-0.6b").items() if not key.startswith("_")}


@pytest.fixture(autouse=True)
def no_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("TRILEMMA_MODELS", raising=False)


@pytest.mark.parametrize(
    ("spelling", "entry"),
    [
        ("llama-3.1-70b", "llama-3.1-70b"),
        ("META-LLAMA/llama-3.1-70b-INSTRUCT", "llama-3.1-70b"),
        ("Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("LLaMA 3 70B", "llama-3-70b"),
        ("LLAMA3_70B [SFT]", "llama-3-70b"),
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("llama3_1-405b", "llama-3.1-405b"),
        ("Llama 3.1:405b", "llama-3.1-405b"),
        ("LLaMA v2 7B", "llama-2-7b"),
        ("llama2-70b-99.9", "llama-2-70b"),
        ("Llama 4 Scout 17Bx16E [QLoRA r32]", "llama-4-scout"),
        ("GPT-OSS 120B", "gpt-oss-120b"),
        ("gpt-oss 20b", "gpt-oss-20b"),
        ("Qwen3 30B_A3B", "qwen3-30b-a3b"),
        ("Qwen3_235B_a22B", "qwen3-235b-a22b"),
        ("DeepSeekV3", "deepseek-v3"),
        ("DeepSeek R1 14b", "deepseek-r1-distill-qwen-14b"),
        ("DeepSeek R1 671b", "deepseek-r1"),
        ("DeepSeek-R1-0528", "deepseek-r1"),
        ("Nemotron_3_Nano", "nemotron-3-nano-30b-a3b"),
        ("175B (GPT-3)", "gpt-3-175b"),
        ("MPT-1b", "mpt-1b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ],
)
def test_spellings(spelling, entry):
    assert resolve_name(spelling) == (entry, None)


@pytest.mark.parametrize(
    ("name", "entry", "scheme"),
    [
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "fp8-dynamic"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", "w4a16"),
        ("neuralmagic/Qwen2.5-7B-Instruct-quantized.w8a8", "qwen2.5-7b", "w8a8"),
        ("Qwen/Qwen2.5-VL-72B-Instruct-GPTQ-Int4", "qwen2.5-vl-72b", "gptq"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b", "awq"),
        ("nvidia/Qwen3-14B-NVFP4", "qwen3-14b", "nvfp4"),
        ("unsloth/Qwen3-32B-bnb-4bit", "qwen3-32b", "nf4"),
        ("lukealonso/GLM-5.1-NVFP4-MTP", "glm-5.1", "nvfp4"),
        ("llama3_1-70b-fp8_dyn", "llama-3.1-70b", "fp8-dynamic"),
    ],
)
def test_repacks_are_the_base_with_the_scheme_of_their_name(name, entry, scheme):
    found, stated = resolve_name(name)
    assert (found, stated.name) == (entry, scheme)
    model = load_model(name)
    assert model.quantization is not None
    assert any(scheme in note for note in model.assumptions)


def test_official_quantised_siblings_use_their_own_description():
    model = load_model("Qwen/Qwen3-32B-FP8")
    assert model.quantization.weight_format.name == "fp8_block"
    assert not any("states" in note for note in model.assumptions)


def test_a_method_without_bits_is_unknown_and_says_so():
    model = load_model("someone/Qwen3-32B-EXL3-K5")
    assert model.quantization.weight_format is None
    assert "quantization: exl3" in model.unknown_fields


def test_a_model_cut_to_some_layers():
    model = load_model("llama3-70b cut to 12 layers")
    assert len(model.layers) == 12
    assert any("12 layers" in note for note in model.assumptions)
    with pytest.raises(InputError, match="cut to 999"):
        load_model("llama3-70b cut to 999 layers")


def test_unknown_names_offer_near_ones():
    with pytest.raises(UnknownName, match=r"llama-3\.1-70b"):
        load_model("llama-3.1-71b")
    with pytest.raises(UnknownName, match="offline"):
        load_model("nobody/Nothing-9000B")


@pytest.mark.parametrize("name", ["", "  ", "x" * 5000, "a\0b", "../../etc/passwd", "~nobody/x.gguf", "[" * 200, "\n"])
def test_hostile_names(name):
    with pytest.raises(InputError):
        load_model(name)


def write_folder(root, folder, config):
    target = root / folder
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_the_models_folder_comes_before_everything(tmp_path, monkeypatch):
    write_folder(tmp_path, "meta-llama--Llama-3.1-8B", CONFIG | {"num_hidden_layers": 3})
    assert len(load_model("meta-llama/Llama-3.1-8B", models_dir=str(tmp_path)).layers) == 3
    assert len(load_model("META-llama/llama-3.1-8b", models_dir=str(tmp_path)).layers) == 3
    assert len(load_model("meta-llama/Llama-3.1-8B").layers) == 32
    monkeypatch.setenv("TRILEMMA_MODELS", str(tmp_path))
    assert len(load_model("meta-llama/Llama-3.1-8B").layers) == 3
    with pytest.raises(InputError, match="no folder"):
        load_model("meta-llama/Llama-3.1-8B", models_dir=str(tmp_path / "absent"))


def test_a_name_that_states_what_the_configuration_does_not(tmp_path):
    write_folder(tmp_path, "someone--Qwen3-0.6B-quantized.w8a8", CONFIG)
    model = load_model("someone/Qwen3-0.6B-quantized.w8a8", models_dir=str(tmp_path))
    assert model.quantization.weight_format.name == "int8_channel"
    assert any("the name was followed" in note for note in model.assumptions)


def test_a_modelopt_file_beside_the_configuration_is_read(tmp_path):
    folder = write_folder(tmp_path, "nvidia--Qwen3-0.6B-NVFP4", CONFIG)
    quant = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["*.self_attn.*"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quant))
    for model in (load_model("nvidia/Qwen3-0.6B-NVFP4", models_dir=str(tmp_path)), load_model(str(folder))):
        assert {t.format.name for t in model.tensors if t.role.startswith("attention")} == {"bf16"}
        assert {t.format.name for t in model.tensors if t.role.startswith("ffn")} == {"nvfp4"}


def test_the_hub_cache_is_read_by_its_reference(tmp_path):
    hub = tmp_path / "hub" / "models--someone--My-Model"
    revision = "a" * 40
    write_folder(hub / "snapshots", revision, CONFIG | {"num_hidden_layers": 5})
    write_folder(hub / "snapshots", "b" * 40, CONFIG)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text(revision)
    assert len(load_model("someone/My-Model").layers) == 5
    (hub / "refs" / "main").write_text("../../../../etc")
    assert len(load_model("someone/My-Model").layers) in (5, 28)


def test_remote_code_is_never_looked_at(tmp_path):
    folder = write_folder(tmp_path, "x", CONFIG | {"auto_map": {"AutoConfig": "evil.Evil"}})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    assert len(load_model(str(folder)).layers) == 28


@pytest.mark.parametrize(
    "name", ["absent.json", "absent.gguf", "./absent", "/absent/config.json", "absent.safetensors"]
)
def test_missing_files_are_named(name):
    with pytest.raises(InputError, match="absent"):
        load_model(name)


def test_mixtures_without_their_active_parameters():
    assert resolve_name("Qwen3-235B") == ("qwen3-235b-a22b", None)
    assert resolve_name("qwen3:30b") == ("qwen3-30b-a3b", None)


def test_bits_in_a_name_win_over_the_method():
    assert resolve_name("someone/Qwen3-30B-A3B-AWQ-8bit")[1].name == "w8a16"


def test_a_method_without_format_in_the_configuration_of_a_model_known_as_plain(tmp_path):
    write_folder(tmp_path, "Qwen--Qwen3-0.6B", CONFIG | {"quantization_config": {"quant_method": "modelopt"}})
    model = load_model("Qwen/Qwen3-0.6B", models_dir=str(tmp_path))
    assert model.quantization is None
    assert any("published unquantised" in note for note in model.assumptions)
    assert not any("not known" in note for note in model.assumptions)
