"""Precision plans: every tensor assigned, bytes exact, engines' fusion kept, what leaves room for the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.hardware.gpu_argument import parse_gpu_argument
from trilemma.hardware.number_formats import runs
from trilemma.models.architecture import Model
from trilemma.models.resolve import load_model
from trilemma.precision.capability import obstacles
from trilemma.precision.patterns import groups_of, is_matrix, read_rules
from trilemma.precision.plan import PrecisionPlan, plan_from_choice, plan_from_rules
from trilemma.precision.presets import file_plan, ladder, preset_names, preset_plan

GB = 1e9


@pytest.fixture(scope="module")
def llama() -> Model:
    return load_model("llama-3-70b")


def ruled(model: Model, *rules: dict[str, object]) -> PrecisionPlan:
    return plan_from_rules(model, read_rules(list(rules), what="test"), name="test")


@pytest.mark.parametrize(
    ("ffn", "attention_out", "expected_gb"),
    # parameters x bits / 8 with scales, by hand: 56.37e9 FFN, 12.08e9 attention, 2.10e9 embedding and head
    [("int4_g128", "int8_channel", 45.35), ("int4_g32", "int8_channel", 47.99), ("int4_g128", "bf16", 50.72)],
)
def test_layers_in_different_formats(llama: Model, ffn: str, attention_out: str, expected_gb: float) -> None:
    plan = ruled(
        llama,
        {"roles": ["embedding", "head"], "weights": "bf16"},
        {"roles": ["attention.o"], "weights": attention_out},
        {"roles": ["attention"], "weights": "int8_channel"},
        {"roles": ["ffn"], "weights": ffn},
        {"roles": ["*"], "weights": "own"},
    )
    assert plan.weights_bytes / GB == pytest.approx(expected_gb, rel=1e-3)
    assert plan.weights_bytes == sum(one.bytes for one in plan.groups) + plan.kept_bytes


@pytest.mark.parametrize(
    ("preset", "expected_gb"), [("layered", 45.35), ("nf4-double-quant", 39.52), ("16-bit", 141.107)]
)
def test_presets_of_a_70b_model(llama: Model, preset: str, expected_gb: float) -> None:
    assert preset_plan(llama, preset).weights_bytes / GB == pytest.approx(expected_gb, rel=1e-3)


def test_the_command_shows_the_same_bytes_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precision", "plan", "llama-3-70b", "--preset", "layered", "--explain"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "45,357,350,912 bytes" in shown
    assert "16-bit scale and 0-bit zero point per 128 elements" in shown


@pytest.mark.parametrize(
    "name", ["llama-3-70b", "gpt-oss-120b", "deepseek-v3", "qwen3.5-27b", "qwen3-vl-8b", "gemma-3-27b"]
)
@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_covers_every_tensor(name: str, preset: str) -> None:
    model = load_model(name)
    plan = preset_plan(model, preset)
    assert len(plan.model.tensors) == len(model.tensors)
    assert sum(len(one.group.tensors) for one in plan.groups) == sum(map(is_matrix, model.tensors))
    for tensor in plan.model.tensors:
        assert len(tensor.shape) > 1 or tensor.format.bits >= 16


def test_an_unassigned_tensor_is_refused_with_its_name(llama: Model) -> None:
    with pytest.raises(InputError, match=r"no format to .* such as model\.embed_tokens\.weight"):
        ruled(llama, {"roles": ["attention", "ffn"], "weights": "int8_channel"})


def test_fused_projections_share_a_format(llama: Model) -> None:
    with pytest.raises(InputError, match="engines fuse them"):
        ruled(llama, {"roles": ["attention.q"], "weights": "int8_channel"}, {"roles": ["*"], "weights": "own"})
    with pytest.raises(InputError, match="different activation formats"):
        ruled(
            llama,
            {"roles": ["ffn.up"], "weights": "fp8_channel", "activations": "fp8_e4m3"},
            {"roles": ["ffn"], "weights": "fp8_channel"},
            {"roles": ["*"], "weights": "own"},
        )


@pytest.mark.parametrize(
    ("fmt", "message"),
    [
        ("int8", "no format of weights"),
        ("e8m0", "no format of weights"),
        ("fp8_e4m3", "no scale"),
        ("fp9", "number format"),
    ],
)
def test_formats_that_hold_no_weights(llama: Model, fmt: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ruled(llama, {"roles": ["matrix"], "weights": fmt}, {"roles": ["*"], "weights": "own"})


def test_vectors_are_not_quantised(llama: Model) -> None:
    with pytest.raises(InputError, match="vectors and states"):
        ruled(llama, {"roles": ["norm"], "weights": "int8_channel"}, {"roles": ["*"], "weights": "own"})


def test_rows_that_are_no_whole_blocks_take_the_smaller_block() -> None:
    model = load_model("gpt-oss-120b")  # rows of 2,880 are no multiple of 256
    assert "q5_0" in {tensor.format.name for tensor in preset_plan(model, "q4_k_m").model.tensors}
    plan = ruled(model, {"roles": ["matrix"], "weights": "q4_k"}, {"roles": ["*"], "weights": "own"})
    assert "q5_0" in {tensor.format.name for tensor in plan.model.tensors}
    assert any("no whole blocks of q4_k" in note for note in plan.notes)


def test_rules_by_module_and_layer(llama: Model) -> None:
    plan = ruled(
        llama,
        {"modules": ["re:.*layers\\.0\\.mlp.*"], "weights": "own"},
        {"roles": ["ffn"], "layers": ["-1", "1-3"], "weights": "int8_channel"},
        {"roles": ["ffn"], "weights": "int4_g128"},
        {"roles": ["*"], "weights": "own"},
    )
    formats = {one.group.name: one.weights.name for one in plan.groups}
    assert formats["0.ffn.down"] == "bf16"
    assert {formats[f"{layer}.ffn.down"] for layer in (1, 2, 3, 79)} == {"int8_channel"}
    assert formats["4.ffn.gate_up"] == "int4_g128"


def test_llama_cpp_mix_takes_more_bits_for_half_of_the_layers(llama: Model) -> None:
    plan = preset_plan(llama, "q4_k_m")
    wide = [t.layer for t in plan.model.tensors if t.role == "ffn.down" and t.format.name == "q6_k"]
    assert wide[:10] == list(range(10))  # the first eighth of 80 layers
    assert len(wide) == 40


def test_a_choice_of_groups_is_laid_over_the_model(llama: Model) -> None:
    names = [group.name for group in groups_of(llama)]
    plan = plan_from_choice(llama, {names[1]: "int4_g32", "head": "int8_channel"}, name="chosen")
    assert {one.group.name: one.weights.name for one in plan.groups if one.weights.bits < 16} == {
        names[1]: "int4_g32",
        "head": "int8_channel",
    }
    with pytest.raises(InputError, match="are not in"):
        plan_from_choice(llama, {"81.ffn.down": "int4_g32"}, name="chosen")


def test_a_printed_plan_is_read_again(llama: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precision", "plan", "llama-3-70b", "--preset", "w4a16", "--json"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    document = json.loads(path.read_text())
    assert (
        file_plan(llama, path).weights_bytes == document["weights_bytes"] == preset_plan(llama, "w4a16").weights_bytes
    )
    assert sum(group["bytes"] for group in document["groups"]) < document["weights_bytes"]
    assert document["bits_per_parameter"] == pytest.approx(4.479, abs=0.001)


def test_training_state_of_a_plan_file(llama: Model, tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        'rules = [{ roles = ["*"], weights = "own" }]\n'
        'lifetimes = { gradients = "fp32", master_weights = "fp32", moments = "fp32" }\n'
    )
    assert file_plan(llama, path).training_bytes_per_parameter == 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "context", "bits", "cache"),
    [
        ("rtx-4090", 8192, 4, "auto"),
        ("rtx-3090", 8192, 4, "auto"),
        ("rtx-5090", 32768, 4, "auto"),
        ("l40s", 24576, 8, "auto"),
    ],
)
def test_qwen3_32b_on_one_card(
    gpu: str, context: int, bits: int, cache: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["precision", "plan", "qwen3-32b", "--gpu", gpu, "--context", str(context), "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    formats = {group["weights"] for group in document["groups"] if group["role"] == "ffn.down"}
    assert formats == ({"nvfp4" if gpu == "rtx-5090" else "int4_g128"} if bits == 4 else {"fp8_channel"})
    assert document["kv_cache"] == cache
    assert document["fits"]
    assert document["estimate"]["fits"]
    assert document["budget"]["left_for_weights_bytes"] >= document["weights_bytes"]


@pytest.mark.parametrize(
    ("preset", "scheme"), [("fp8", "fp8-dynamic"), ("awq", "awq"), ("w4a16", "w4a16"), ("16-bit", "bf16")]
)
def test_the_weights_line_is_that_of_fit(preset: str, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    card = ["--gpu", "h100-sxm", "--context", "8192", "--json"]
    main(["precision", "plan", "qwen3-32b", "--preset", preset, *card])
    planned = json.loads(capsys.readouterr().out)["estimate"]["memory"]["items"][0]
    main(["fit", "qwen3-32b", "--precision", scheme, *card])
    fitted = json.loads(capsys.readouterr().out)["memory"]["items"][0]
    assert planned["name"] == fitted["name"] == "weights"
    assert planned["bytes"] == fitted["bytes"]


@pytest.mark.slow
def test_a_stated_budget_replaces_what_the_cache_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    card = ["--gpu", "h100-sxm", "--context", "8192", "--json"]
    assert main(["precision", "plan", "qwen3-32b", "--budget-gib", "18", *card]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "w4a16"
    assert document["weights_bytes"] <= 18 * 2**30
    assert main(["precision", "plan", "qwen3-32b", "--budget-gib", "10", *card]) == 1


def test_what_a_card_runs() -> None:
    model = load_model("qwen3-32b")
    ampere, hopper, amd = (parse_gpu_argument(name)[0] for name in ("a100-sxm4-80gb", "h100-sxm", "mi300x"))
    assert obstacles(preset_plan(model, "fp8"), ampere)
    assert not obstacles(preset_plan(model, "w8a8"), ampere)
    assert not obstacles(preset_plan(model, "fp8"), hopper)
    assert obstacles(preset_plan(model, "nvfp4"), hopper)
    assert not obstacles(preset_plan(model, "nvfp4a16"), hopper)
    plan = preset_plan(model, "fp8")
    one = next(group for group in plan.groups if group.weights.bits == 8)
    assert "FNUZ" in runs(one.weights, one.activations, amd).why


def test_ladder_holds_presets_only() -> None:
    assert set(ladder()) | set(ladder("llama.cpp")) <= set(preset_names())


@pytest.mark.slow
def test_llama_cpp_is_offered_its_own_formats(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "precision",
        "plan",
        "qwen3-32b",
        "--gpu",
        "rtx-4090",
        "--context",
        "8192",
        "--engine",
        "llama.cpp",
        "--json",
    ]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert {group["weights"] for group in document["groups"]} <= {"q4_k", "q5_k", "q6_k", "q8_0"}


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "rules = 3", "rules = []", "rules = [3]", 'rules = [{ weights = "bf16" }]', "[" * 100_000,
        'rules = [{ roles = ["*"], weights = "nope" }]', 'rules = [{ roles = ["*"], weights = 4 }]',
        'rules = [{ roles = ["*"], weights = "own", color = 1 }]', '{"plan": {"rules": {}}}', "\x00", '{"rules": ' + "[" * 9999,
        'rules = [{ modules = ["re:(a+)+(b+)+$"], weights = "own" }]',
        'rules = [{ roles = ["*"], layers = ["x"], weights = "own" }]',
        'kv_cache = "int5"\nrules = [{ roles = ["*"], weights = "own" }]',
        'lifetimes = { dreams = "fp32" }\nrules = [{ roles = ["*"], weights = "own" }]',
    ],
)  # fmt: skip
def test_broken_plan_files_are_refused_in_one_line(llama: Model, tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        file_plan(llama, path)


@pytest.mark.slow
@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader_of_plans(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(raw)
    with pytest.raises(InputError):
        file_plan(load_model("qwen3-4b"), path)
