"""Small models of Megatron-LM's functional tests, whose golden values state what PyTorch allocated on the last stage.

NVIDIA/Megatron-LM at d98e8a64, tests/functional_tests/test_cases/gpt/*: model_config.yaml and
golden_values_dev_dgx_h100.json (mem-max-allocated-bytes, the largest of all iterations), GPT-2's vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from trilemma.engines.training import read_training
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import training_memory
from trilemma.quantities import GIB

CARDS = Cluster.of(find("h100-sxm"), 8)
_MODEL = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 512 --num-attention-heads 8"
    " --micro-batch-size 4 --global-batch-size 32 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 --bf16"
)
_TE = "--transformer-impl transformer_engine"
_DRY = "--hidden-dropout 0.0 --attention-dropout 0.0"
_SHARDED = "--use-distributed-optimizer"
RUNS = [
    # gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer, …uniform_full_recompute, …tp1_pp2_resume_torch_dist_rope_embeddings
    (f"{_TE} {_SHARDED}", 2.507),
    (f"{_TE} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1", 2.385),
    (f"{_TE} --pipeline-model-parallel-size 2 --position-embedding-type rope", 2.420),
    # gpt3_mcore_te_tp2_pp2_resume_torch_dist and the same with the compiled loss: 4 bytes a logit more
    (f"{_TE} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", 1.330),
    (f"{_TE} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --cross-entropy-loss-fusion", 1.711),
    # gpt3_mcore_te_tp2_pp2_cp2, gpt3_mcore_te_tp4_pp1_resume_torch_dist_dist_optimizer_overlap_grad_reduce
    (f"{_TE} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2"
     f" --sequence-parallel {_DRY}", 0.871),
    (f"{_TE} --tensor-model-parallel-size 4 {_SHARDED}", 0.971),
    # gpt3_mcore_tp1_pp1_resume_torch_dist_dist_optimizer_…, gpt3_mcore_tp1_pp4: layers of Megatron-Core itself hold scores
    (f"--transformer-impl local {_SHARDED}", 4.292),
    ("--transformer-impl local --pipeline-model-parallel-size 4", 2.558),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "measured"), RUNS)
def test_allocated_bytes_of_the_last_stage(flags: str, measured: float) -> None:
    found = read_training("megatron", f"{_MODEL} {flags}".split())
    assert found.architecture is not None
    memory = training_memory(found.architecture, CARDS, found.plan, found.workload)
    lines = memory.ranks[-1].ledger
    allocated = sum(float(line.bytes) for line in lines if line.name not in ("context", "fragmentation"))
    assert allocated / GIB == pytest.approx(measured, abs=0.1)


def test_no_library_holds_memory_of_a_processor() -> None:
    """The pilots of docs/accuracy.md agree to the byte without it."""
    found = read_training("megatron", f"{_MODEL} {_TE}".split())
    assert found.architecture is not None
    processor = replace(CARDS, accelerator=replace(CARDS.accelerator, vendor="CPU"))
    names = [
        {line.name for line in training_memory(found.architecture, where, found.plan, found.workload).ledger}
        for where in (CARDS, processor)
    ]
    assert names[0] - names[1] == {"libraries"}
