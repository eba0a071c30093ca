"""NeMo AutoModel: its own benchmark configurations are read, and their published step times lie near what is predicted.

Times: NVIDIA-NeMo/Automodel docs/performance-summary.mdx at 36044ad3 (DGX H100, BF16); no number was fitted to them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import trilemma as tl
from trilemma.engines.training import owner_of, read_training
from trilemma.errors import InputError

BENCH = """\
recipe: BenchmarkingRecipeForNextTokenPrediction
step_scheduler: {{global_batch_size: {batch}, local_batch_size: {micro}, max_steps: 10}}
dataset: {{_target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset, seq_len: {seq}}}
model: {{pretrained_model_name_or_path: {model}, torch_dtype: bf16, attn_implementation: {attention}}}
optimizer: {{_target_: {optimizer}, lr: 0.0002}}
distributed: {{strategy: fsdp2, tp_size: {tp}, cp_size: {cp}, ep_size: {ep}, activation_checkpointing: {checkpointing}}}
{more}
"""
PLAIN = {
    "tp": 1, "cp": 1, "ep": 1, "attention": "te", "optimizer": "torch.optim.Adam", "checkpointing": "false", "more": "",
}  # fmt: skip
LORA = "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, match_all_linear: true, dim: 16}"


def written(folder: Path, **given: object) -> str:
    path = folder / "bench.yaml"
    path.write_text(BENCH.format(**{**PLAIN, **given}))
    return str(path)


@pytest.mark.parametrize(
    ("given", "gpus", "measured_s", "within"),
    [
        ({"model": "meta-llama/Llama-3.1-70B", "batch": 128, "micro": 1, "seq": 8192, "cp": 2, "attention": "sdpa",
          "checkpointing": "true", "more": "loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}"},
         64, 18.90, 0.2),
        ({"model": "meta-llama/Llama-3.3-70B-Instruct", "batch": 32, "micro": 2, "seq": 4096, "tp": 2,
          "checkpointing": "true", "more": LORA}, 8, 15.00, 0.15),
        ({"model": "Qwen/Qwen2.5-32B", "batch": 32, "micro": 2, "seq": 4096, "tp": 2, "checkpointing": "true", "more": LORA},
         8, 7.28, 0.15),
        ({"model": "openai/gpt-oss-20b", "batch": 256, "micro": 2, "seq": 4096, "ep": 8}, 8, 10.04, 0.2),
    ],
)  # fmt: skip
def test_published_steps(tmp_path: Path, given: dict[str, object], gpus: int, measured_s: float, within: float) -> None:
    command = f"torchrun --nnodes {max(gpus // 8, 1)} --nproc-per-node 8 -m nemo_automodel.cli.app {written(tmp_path, **given)}"
    answer = tl.check(command, gpu=f"h100-sxm:{gpus}")
    assert answer.speed is not None
    assert answer.speed.step_s is not None
    found = answer.speed.step_s.interval
    assert found.value == pytest.approx(measured_s, rel=within)
    assert found.low <= measured_s <= found.high


def test_the_launch_and_words_that_go_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, model="Qwen/Qwen3-30B-A3B", batch=64, micro=2, seq=4096, ep=8)
    words = [
        "automodel",
        path,
        "--nproc-per-node",
        "8",
        "--distributed.cp_size",
        "2",
        "--step_scheduler.global_batch_size=32",
    ]
    assert owner_of(words) == "automodel"
    command = read_training("automodel", words)
    plan = command.plan
    assert (command.gpus, int(plan.layout.dp), int(plan.layout.cp), int(plan.layout.ep)) == (8, 4, 2, 8)
    assert (command.workload.global_batch, plan.dispatcher, plan.zero) == (32, "deepep", 3)
    assert (plan.recipe.name, plan.optimizer.name) == ("pure-bf16", "adamw-like-weights")


def test_a_pipeline_cuts_the_local_batch(tmp_path: Path) -> None:
    more = "ci: {nodes: 1}"
    path = written(tmp_path, model="deepseek-ai/DeepSeek-V3", batch=64, micro=8, seq=4096, more=more)
    words = ["am", path, "--nproc-per-node", "8", "--distributed.pp_size=4"]
    plan = read_training("automodel", words).plan
    assert (int(plan.layout.pp), int(plan.layout.dp), int(plan.micro_batch)) == (4, 2, 1)
    assert not plan.reshard


def test_what_is_no_training_of_language_models_is_refused(tmp_path: Path) -> None:
    path = Path(written(tmp_path, model="Qwen/Qwen3-8B", batch=8, micro=1, seq=512))
    path.write_text(path.read_text().replace("BenchmarkingRecipeForNextTokenPrediction", "TrainEagle3Recipe"))
    with pytest.raises(InputError, match="language models"):
        read_training("automodel", ["automodel", str(path), "--nproc-per-node", "8"])
    with pytest.raises(InputError, match="its configuration"):
        read_training("automodel", ["automodel", "--nproc-per-node", "8"])
