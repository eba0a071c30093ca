"""Ways to start a training script, told apart by what starts a process for each GPU; flags of scripts that nobody knows."""

import json
import shlex
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.commands.launchers import split_launch
from trilemma.engines.extract import extract
from trilemma.engines.training import read_training
from trilemma.errors import InputError
from trilemma.models.naming import without_url


@pytest.mark.parametrize(
    ("words", "script", "gpus", "per_node"),
    [
        ("torchrun --nproc_per_node 8 train.py --a 1", "train.py", 8, 8),
        ("torchrun --nproc-per-node=4 --nnodes=2 train.py", "train.py", 8, 4),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 train.py", "train.py", 32, 8),
        ("python -m torch.distributed.run --nproc_per_node 8 --nnodes 2 train.py", "train.py", 16, 8),
        ("python3 -u -m torch.distributed.launch --nproc_per_node=8 train.py", "train.py", 8, 8),
        ("python -m torch.distributed.run --nproc_per_node 8 -m pkg.train --a 1", "pkg.train", 8, 8),
        ("python -u train.py", "train.py", 1, 1),
        ("uv run python train.py", "train.py", 1, 1),
        ("uv run torchrun --nproc_per_node 2 train.py", "train.py", 2, 2),
        ("accelerate launch --num_processes 16 --num_machines 2 train.py", "train.py", 16, 8),
        ("accelerate launch --num-processes=8 -m pkg.train", "pkg.train", 8, None),
        ("python -m accelerate.commands.launch --num_processes 4 train.py", "train.py", 4, None),
        ("srun -N 4 --ntasks-per-node=1 torchrun --nproc_per_node 8 --nnodes 4 train.py", "train.py", 32, 8),
        ("srun --nodes=4 --ntasks-per-node=1 torchrun --nproc_per_node=8 --nnodes=$SLURM_NNODES train.py", "train.py", 32, 8),
        ("srun -n 16 -N 2 python train.py", "train.py", 16, 8),
        ("srun --nodes 2 --ntasks-per-node 8 python -u train.py", "train.py", 16, 8),
        ("mpirun -np 16 -npernode 8 python train.py", "train.py", 16, 8),
        ("deepspeed --num_gpus 4 train.py", "train.py", 4, 4),
        ("deepspeed --num_nodes 2 --num_gpus=8 train.py", "train.py", 16, 8),
        ("deepspeed --include localhost:0,1,2 train.py", "train.py", 3, 3),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed train.py", "train.py", 2, 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node gpu train.py", "train.py", 4, 4),
        ("CUDA_VISIBLE_DEVICES=$IDS deepspeed train.py", "train.py", None, None),
        ("deepspeed --module pkg.train --a 1", "pkg.train", None, None),
    ],
)  # fmt: skip
def test_processes_of_a_launcher(words: str, script: str, gpus: int | None, per_node: int | None) -> None:
    launch = split_launch(shlex.split(words))
    assert (launch.script, launch.gpus, launch.gpus_per_node) == (script, gpus, per_node)


TRAIN = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --max_length 2048 --bf16 true"


@pytest.mark.parametrize(
    "start",
    [
        "python -u -m trainer", "nohup python train.py", "env WANDB_MODE=offline python train.py", "sudo -E python3 train.py",
        "uv run train.py", "NCCL_DEBUG=INFO torchrun --nproc_per_node 1 train.py", "poetry run python train.py",
        "bash -lc 'python train.py @'", "conda run -n train python train.py", "time python train.py",
    ],
)  # fmt: skip
def test_what_stands_before_python(start: str) -> None:
    words = start.replace("@", TRAIN) if "@" in start else f"{start} {TRAIN}"
    framework, own = extract(shlex.split(words))
    found = read_training(framework, own, gpus=1)
    assert (found.gpus, found.workload.seq, found.plan.recipe.name) == (1, 2048, "amp")


def test_a_url_of_the_hub_is_its_id() -> None:
    words = "python train.py --model_name_or_path https://huggingface.co/meta-llama/Llama-3.1-8B --per_device_train_batch_size 1"
    found = read_training("transformers", shlex.split(words), gpus=1)
    assert found.model == "meta-llama/Llama-3.1-8B"
    for page in ("/tree/main", "/blob/main/config.json", "/", "?library=x"):
        assert without_url(f"https://huggingface.co/Qwen/Qwen3-8B{page}") == "Qwen/Qwen3-8B"
    for other in ("https://example.com/Qwen/Qwen3-8B", "https://huggingface.co/datasets/a/b", "./Qwen/Qwen3-8B"):
        assert without_url(other) == other


def test_flags_of_an_unknown_script_are_named_and_the_deepspeed_file_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeepSpeed issue 7482: a script's own --batch_size beside a file that states the batch of a step; out of memory."""
    document = {
        "train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    (tmp_path / "z2off.json").write_text(json.dumps(document))
    words = (
        f"deepspeed --num_gpus 4 train.py --deepspeed {tmp_path}/z2off.json --model_name_or_path Qwen/Qwen2.5-14B"
        " --batch_size 8 --my_own_flag 3"
    )
    found = read_training("deepspeed", shlex.split(words))
    assert (found.plan.micro_batch, found.workload.global_batch) == (2, 8)
    assert set(found.unknown_flags) == {"--batch_size", "--my_own_flag"}
    assert main(["check", "--gpu", "a100-sxm4-40gb:4", "--", *shlex.split(words)]) == 1
    assert "--batch_size" in capsys.readouterr().out
    with pytest.raises(InputError, match="train_batch_size 8 is not a multiple of accumulation 1 x 3 replicas"):
        read_training("deepspeed", shlex.split(words.replace("--num_gpus 4", "--num_gpus 3")))
