"""What FP32 weights keep under autocast, Liger's kernels, and blocks that an allocator keeps because it has room."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from training_plans import memory

from trilemma.cli.main import main
from trilemma.memory.row_terms import row_terms
from trilemma.memory.training_model import prepare
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan, recipe
from trilemma.plans.training import Recompute
from trilemma.quantities import GIB
from trilemma.workloads import TrainingWorkload

_ADAPTERS = (
    "python train.py --model_name_or_path NousResearch/Meta-Llama-3.1-8B-Instruct --dtype float32 --bf16 true --use_peft true"
    " --lora_r 16 --lora_target_modules q_proj v_proj --per_device_train_batch_size 4 --max_length 1024"
    " --gradient_checkpointing false"
)


def _checked(capsys: pytest.CaptureFixture[str], gpu: str, words: str) -> dict[str, Any]:
    main(["check", "--gpu", gpu, "--json", "--", *shlex.split(words)])
    return dict(json.loads(capsys.readouterr().out))


def _lines(answer: dict[str, Any]) -> dict[str, float]:
    return {one["name"]: one["bytes"] / GIB for one in answer["memory"]["items"]}


@pytest.mark.parametrize(("held", "each"), [("pure-bf16", 49.0), ("amp", 59.0)])
def test_a_layer_of_fp32_weights_keeps_a_copy_of_its_input_for_each_product(held: str, each: float) -> None:
    """Saved-tensor hooks on LlamaForCausalLM, torch 2.13, transformers 5.24, autocast to BF16: 49.2 bytes per token and hidden
    value with BF16 weights; 59.2 with FP32 ones, casts of weights apart (four FP32 and six 16-bit tensors of a hidden state)."""
    model = load_model("llama-3-8b")
    plan = TrainingPlan(recipe=recipe(held), implementation="transformers", sp=False, zero=0, layout=Layout())
    load = TrainingWorkload(seq=1024, global_batch=1)
    kept = float(row_terms(prepare(model, plan, load), plan, load).kept[0])
    assert kept / 1024 / model.hidden == pytest.approx(each, rel=0.005)


@pytest.mark.parametrize(("more", "gib"), [("", 70.99), (" --use_liger_kernel true", 61.81)])
def test_adapters_on_a_model_loaded_in_fp32(capsys: pytest.CaptureFixture[str], more: str, gib: float) -> None:
    """MakazhanAlpamys/Soup benchmarks/gate-h100-validation.md at 2428453, step 17: the whole card, H100."""
    answer = _checked(capsys, "h100-sxm", _ADAPTERS + more)
    assert answer["memory"]["total_bytes"] / GIB == pytest.approx(gib, rel=0.06)


def test_a_model_loaded_in_sixteen_bits_is_cast_by_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    wide = _lines(_checked(capsys, "h100-sxm", _ADAPTERS))
    narrow = _lines(_checked(capsys, "h100-sxm", _ADAPTERS.replace("float32", "bfloat16")))
    assert wide["weights"] > 2 * narrow["weights"]  # the output matrix is there in both formats
    assert wide["workspace"] > 12
    assert "workspace" not in narrow


def test_casts_of_trained_weights_live_until_the_loss_though_layers_are_computed_again() -> None:
    """7.24 x 10^9 weights of Mistral-7B without its embedding, 2 bytes each, beside state of 16 bytes a weight."""
    plan: dict[str, Any] = {
        "recipe": recipe("amp"), "implementation": "transformers", "sp": False, "zero": 0, "seq": 65536, "global_batch": 1,
    }  # fmt: skip
    found = memory("mistral-7b-v0.1", recompute=Recompute(mode="full"), gpu="B300", **plan)
    workspace = found.ledger.get("workspace")
    assert workspace is not None
    assert workspace.bytes == pytest.approx(2 * (7.24e9 - 32000 * 4096), rel=0.01)


@pytest.mark.parametrize(
    ("micro", "dp", "method", "gib"),
    [(4, 1, "lora", 28.9), (4, 2, "lora", 25.7)],
)
def test_blocks_of_logits_serve_no_layer(micro: int, dp: int, method: str, gib: float) -> None:
    """foundation-model-stack/fms-acceleration scripts/benchmarks/refs/a100_80gb.csv, rows 32 and 35: MiB of the card under
    adapters on Mistral-7B, 4 x 4,096 tokens, layers computed again."""
    found = memory(
        "mistral-7b-v0.1", seq=4096, global_batch=micro * dp, dp=dp, micro_batch=micro, recipe=recipe("pure-bf16"), sp=False,
        implementation="accelerate" if dp > 1 else "transformers", zero=3 if dp > 1 else 0, flat_parameters=dp > 1,
        recompute=Recompute(mode="full"), gpu="A100 SXM4 80GB",
        work={"method": method, "rank": 16, "targets": ("q_proj", "k_proj", "v_proj", "o_proj")},
    )  # fmt: skip
    assert found.device_bytes / GIB == pytest.approx(gib, rel=0.06)


def test_free_blocks_are_given_back_where_the_card_has_no_room() -> None:
    plan: dict[str, Any] = {
        "recipe": recipe("pure-bf16"), "implementation": "transformers", "sp": False, "zero": 0, "micro_batch": 4,
        "recompute": Recompute(mode="full"), "seq": 4096, "global_batch": 4,
        "work": {"method": "lora", "rank": 16, "targets": ("q_proj", "v_proj")},
    }  # fmt: skip
    large, small = memory("mistral-7b-v0.1", gpu="H100", **plan), memory("mistral-7b-v0.1", gpu="RTX 4090", **plan)
    assert large.allocated_bytes == pytest.approx(small.allocated_bytes, rel=0.01)
    assert large.cached_bytes > 1.5 * GIB
    assert small.cached_bytes == 0
    assert small.reserved_bytes < large.reserved_bytes
