"""Multi-token-prediction layers: trained where the command has them, written where the plan trains them."""

import shlex
from dataclasses import replace

from trilemma.engines.megatron.write import write
from trilemma.engines.training import read_training
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import training_memory
from trilemma.models.resolve import load_model
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.search.training_single import single_training_plan
from trilemma.workloads import TrainingWorkload

LOAD = TrainingWorkload(seq=4096, global_batch=2048)
COMMAND = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192"
    " --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64"
    " --vocab-size 32000 --bf16 --swiglu --disable-bias-linear --normalization RMSNorm --use-distributed-optimizer"
    " --untie-embeddings-and-output-weights --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 2048"
    " --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128"
)


def peak(command: str) -> float:
    read = read_training("megatron", shlex.split(command), gpus=8)
    assert read.architecture is not None
    return float(
        training_memory(read.architecture, Cluster.of(find("h100-sxm"), 8), read.plan, read.workload).device_bytes
    )


def test_the_flag_costs_memory() -> None:
    more = peak(f"{COMMAND} --mtp-num-layers 1") / peak(COMMAND)
    assert 1 + 0.7 / 16 < more < 1 + 3 / 16


def test_what_is_written_is_what_was_judged() -> None:
    model, settled = load_model("deepseek-v3"), TrainingConstraints(tp=1, pp=16, ep=16, micro_batch=1)
    plan = single_training_plan(model, find("h100-sxm"), LOAD, settled, gpus=256)
    assert plan.mtp
    words = shlex.join(write(model=model, plan=plan, workload=LOAD))
    assert "--mtp-num-layers 1" in words
    assert "mL" in words
    without = shlex.join(write(model=model, plan=replace(plan, mtp=False), workload=LOAD))
    assert "--mtp" not in without
    assert "mL" not in without
    cluster = Cluster.of(find("h100-sxm"), 256)
    with_mtp, bare = (training_memory(model, cluster, one, LOAD) for one in (plan, replace(plan, mtp=False)))
    last = [
        sum(float(line.bytes) for line in one.ranks[-1].ledger if line.name == "weights") for one in (with_mtp, bare)
    ]
    assert last[0] > last[1] * 0.9
    assert float(with_mtp.ledger.total()) != float(bare.ledger.total())


def test_adapters_and_other_frameworks_train_none() -> None:
    model = load_model("deepseek-v3")
    for settled in (
        TrainingConstraints(implementation="torchtitan"),
        TrainingConstraints(implementation="deepspeed", zero=3),
    ):
        assert not single_training_plan(model, find("h100-sxm"), LOAD, settled, gpus=256).mtp
