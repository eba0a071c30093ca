"""What an optimizer step holds beside its state: copies of gradients and moments, and moments that page to the host."""

import json
import shlex
from dataclasses import replace

import pytest

from trilemma.cli.main import main
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import TrainingMemory, training_memory
from trilemma.models.parameters import count
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Recompute, TrainingPlan, optimizer, recipe
from trilemma.plans.recipes import frozen_as
from trilemma.quantities import GIB
from trilemma.workloads import TrainingWorkload


def memory(name: str, gpus: int, **changes: object) -> TrainingMemory:
    plan = TrainingPlan(layout=Layout(dp=gpus), recompute=Recompute(mode="full"), **changes)
    workload = TrainingWorkload(seq=512, global_batch=gpus)
    return training_memory(load_model(name), Cluster.of(find("a100-sxm4-80gb"), gpus), plan, workload)


@pytest.mark.parametrize(("zero", "elements"), [(2, 13_015_864_320 / 4), (3, 1e9)])
def test_deepspeed_copies_gradients_into_fp32_when_it_steps(zero: int, elements: float) -> None:
    """deepspeed/runtime/zero: flatten(averaged_gradients).to(fp32), of the partition, under ZeRO-3 of sub_group_size (1e9).

    hiyouga/LLaMA-Factory issue 1158: 13.9 billion parameters on 4 A800 under ZeRO-2 ask for 12.94 GiB more at 77.65.
    """
    found = memory("llama-2-13b", 4, zero=zero, implementation="deepspeed", recipe=recipe("zero-bf16"))
    assert count(load_model("llama-2-13b")).total == 13_015_864_320
    assert found.ledger["workspace"].bytes == pytest.approx(elements * 6, rel=1e-6)
    fsdp = memory("llama-2-13b", 4, zero=zero, implementation="transformers", recipe=recipe("zero-bf16"))
    assert fsdp.ledger.get("workspace") is None or fsdp.ledger["workspace"].bytes < elements


def test_adamw_that_is_not_fused_may_copy_a_moment() -> None:
    """modelscope/ms-swift examples/train/full/train.sh: Qwen2.5-7B on one card, 76 GiB; 61.6 without the copy."""
    plan = {"recipe": recipe("pure-bf16"), "optimizer": optimizer("adamw-like-weights")}
    found = memory("qwen2.5-7b", 1, implementation="transformers", **plan)
    assert found.either_bytes == pytest.approx(found.ledger["optimizer"].bytes / 2)
    assert found.either_bytes / GIB == pytest.approx(76 - 61.6, abs=0.5)
    assert memory("qwen2.5-7b", 1, implementation="axolotl", **plan).either_bytes == 0


def test_compressed_tensors_expand_under_adapters() -> None:
    """vllm-project/compressed-tensors linear/compressed_linear.py: the first forward pass replaces the packed weight."""
    assert frozen_as("int4_g32", "compressed-tensors") == "bf16"
    assert frozen_as("int4_g128", "awq") == "int4_g128"
    assert frozen_as("nf4", "bitsandbytes") == "nf4"


LOW_MEMORY = (
    "tune run full_finetune_single_device --config llama2/7B_full_low_memory batch_size=4 tokenizer.max_seq_len=2048"
)


def test_paged_moments_leave_the_card_where_it_has_no_room(capsys: pytest.CaptureFixture[str]) -> None:
    """pytorch/torchtune pull 961: this recipe takes 20.2 GB of an RTX 4090; its moments alone are 50 GiB."""
    found = {}
    for gpu in ("rtx-4090", "h200-sxm"):
        assert main(["check", "--gpu", gpu, "--json", "--", *shlex.split(LOW_MEMORY)]) == 0
        found[gpu] = json.loads(capsys.readouterr().out)
    lines = {gpu: {item["name"]: item["bytes"] for item in one["memory"]["items"]} for gpu, one in found.items()}
    assert found["rtx-4090"]["fits"]
    assert lines["h200-sxm"]["optimizer"] == pytest.approx(8 * 6_738_415_616)
    assert found["rtx-4090"]["memory"]["total_bytes"] < 23.5 * GIB
    assert sum(lines["rtx-4090"].values()) == found["rtx-4090"]["memory"]["total_bytes"]
    told = {gpu: [warning["code"] for warning in one["warnings"]] for gpu, one in found.items()}
    assert "paged-moments" in told["rtx-4090"]
    assert "paged-moments" not in told["h200-sxm"]
    assert found["rtx-4090"]["speed"]["step_s"]["value"] > 80e9 / 25e9  # 40 GiB there and back over PCIe 4.0


def test_a_processor_steps_over_one_tensor_after_the_other() -> None:
    """A pilot of two layers of 512 over 8,192 tokens of vocabulary peaks at 116,414 kB as its optimizer steps (torch 2.13,
    `measure pilot`): 8 bytes a parameter and twice the largest tensor, the embedding."""
    model = load_model("llama-3.1-8b")
    where = Cluster.of(find("h100-sxm"), 1)
    processor = replace(where, accelerator=replace(where.accelerator, vendor="CPU"))
    plan = TrainingPlan(
        implementation="transformers", recipe=recipe("pure-bf16"), optimizer=optimizer("adamw-like-weights"),
        recompute=Recompute(mode="full"),
    )  # fmt: skip
    load = TrainingWorkload(seq=16, global_batch=1)
    allocated = [float(training_memory(model, one, plan, load).allocated_bytes) for one in (where, processor)]
    state = 8 * sum(tensor.elements for tensor in model.tensors if tensor.role != "table")
    largest = 2 * 2 * max(tensor.elements for tensor in model.tensors)
    assert allocated[1] == pytest.approx(state + largest, rel=0.001)
    assert allocated[0] < allocated[1]
