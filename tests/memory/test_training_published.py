"""Published memory of training runs, value by value; docs/accuracy.md shows the same tables."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from training_plans import cluster, gpt, line_bytes, memory, state_bytes

from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import checkpoint_staging_bytes, training_memory
from trilemma.models import catalogue
from trilemma.models.architecture import Model
from trilemma.models.read import model_from_config
from trilemma.plans import Layout, Offload, Recompute, TrainingPlan, optimizer, recipe
from trilemma.quantities import GIB
from trilemma.workloads import TrainingWorkload

#: Peak allocated GiB over ranks on 8 B200, Megatron-LM 0.14 with Transformer Engine 2.11, distributed optimizer, no recompute
#: (SimuMax v1.2, B200 release summary): model, layers, sequence, tp, pp, cp, ep, dp, allocated, reserved.
SIMUMAX = [
    ("llama-3-70b", 12, 4096, 1, 2, 1, 1, 4, 66.55, 70.88),
    ("llama-3-70b", 12, 4096, 2, 1, 1, 1, 4, 60.68, None),
    ("llama-3-70b", 12, 4096, 4, 1, 1, 1, 2, 39.07, 40.18),
    ("llama-3-70b", 12, 4096, 8, 1, 1, 1, 1, 28.29, 29.12),
    ("deepseek-v2", 4, 4096, 1, 1, 1, 8, 8, 45.63, 48.79),
    ("deepseek-v2", 4, 4096, 1, 2, 1, 4, 4, 44.70, 47.05),
    ("deepseek-v3", 4, 4096, 1, 1, 1, 8, 8, 104.30, 110.18),
    ("deepseek-v3", 4, 4096, 1, 2, 1, 4, 4, 114.00, 118.61),
    ("llama-3.1-405b", 4, 4096, 1, 2, 1, 1, 4, 87.08, None),
    ("llama-3.1-405b", 4, 4096, 2, 1, 1, 1, 4, 81.59, 84.70),
    ("llama-3.1-405b", 4, 4096, 4, 1, 1, 1, 2, 52.89, 54.65),
    ("llama-3.1-405b", 4, 4096, 8, 1, 1, 1, 1, 38.57, 39.83),
    ("llama-3-70b", 12, 32768, 2, 1, 4, 1, 1, 68.43, None),
    ("llama-3-70b", 12, 32768, 1, 1, 8, 1, 1, 104.51, None),
    ("llama-3.1-405b", 4, 32768, 2, 1, 4, 1, 1, 87.03, 91.15),
    ("llama-3.1-405b", 4, 32768, 1, 1, 8, 1, 1, 139.22, None),
    ("llama-3-70b", 12, 131072, 2, 1, 4, 1, 1, 112.67, 121.40),
    ("llama-3-70b", 12, 131072, 1, 1, 8, 1, 1, 147.99, 159.65),
    ("llama-3.1-405b", 4, 131072, 2, 1, 4, 1, 1, 118.13, None),
]


def simumax_model(name: str, layers: int) -> Model:
    """Cut as published: one dense layer of DeepSeek's, sixteen KV heads for 405B (its launcher's), no MTP."""
    config = {key: value for key, value in catalogue.config(name).items() if not key.startswith("_")}
    config["num_hidden_layers"] = layers
    for key in ("quantization_config", "num_nextn_predict_layers"):
        config.pop(key, None)
    if "first_k_dense_replace" in config:
        config["first_k_dense_replace"] = 1
    if "405b" in name:
        config["num_key_value_heads"] = 16
    return model_from_config(config, name=f"{name}, {layers} layers", source="catalogue")


def simumax_gib(row: tuple[object, ...]) -> tuple[float, float]:
    name, layers, seq, tp, pp, cp, ep, dp, *_ = row
    found = memory(
        simumax_model(name, layers), seq=seq, tp=tp, pp=pp, cp=cp, ep=ep, dp=dp, global_batch=4 * dp,  # type: ignore[arg-type, operator]
    )  # fmt: skip
    return found.allocated_bytes / GIB, found.reserved_bytes / GIB


def test_simumax_rows_within_three_and_six_percent() -> None:
    found = [simumax_gib(row) for row in SIMUMAX]
    errors = np.array([abs(allocated / row[8] - 1) for (allocated, _), row in zip(found, SIMUMAX, strict=True)])
    assert np.median(errors) <= 0.03
    assert np.quantile(errors, 0.9) <= 0.06
    assert errors.max() <= 0.04
    reserved = np.array(
        [abs(value / row[9] - 1) for (_, value), row in zip(found, SIMUMAX, strict=True) if row[9] is not None]
    )
    assert np.median(reserved) <= 0.03
    assert reserved.max() <= 0.06


#: Korthikanti et al. 2022 (arXiv 2205.05198), A100 80 GB, TP 8, sequence 2,048: layers, hidden, heads, pp, vpp, micro-batch,
#: micro-batches; GiB of weights with optimizer and of activations, neither recomputed nor sequence parallel, and both
#: selectively recomputed and sequence parallel (figure 1); percent of activations left (figure 7).
KORTHIKANTI = {
    "22B": (48, 6144, 64, 1, 1, 4, 4, 45.5625, 59.25, 9.5625, (66.84, 49.42, 16.18, 7.64)),
    "175B": (96, 12288, 96, 8, 3, 1, 64, 45.5625, 66.84375, 12.3515625, (62.04, 56.53, 18.49, 8.71)),
    "530B": (105, 20480, 128, 35, 3, 1, 280, 31.640625, 114.0234375, 23.076171875, (58.31, 62.04, 20.27, 9.42)),
    "1T": (128, 25600, 160, 64, 1, 1, 512, 32.958984375, 131.25, 26.5625, (58.31, 62.04, 20.27, 9.42)),
}


def korthikanti(name: str, *, sp: bool, recompute: Recompute) -> tuple[float, float]:
    """GiB of state without embeddings and of activations on the first stage."""
    layers, hidden, heads, pp, vpp, micro_batch, batches, *_ = KORTHIKANTI[name]
    what = gpt(name, layers=layers, hidden=hidden, heads=heads)
    found = memory(
        what, seq=2048, tp=8, pp=pp, vpp=vpp, micro_batch=micro_batch, global_batch=batches * micro_batch, version="2022-05",
        zero=0, sp=sp, recompute=recompute, attention="eager", schedule="interleaved" if vpp > 1 else "1f1b",
    )  # fmt: skip
    first = found.ranks[0].ledger
    ends = sum(one.elements for one in what.tensors if one.part == "embedding")
    ends += sum(one.elements for one in what.tensors if one.part == "head") * (pp == 1)
    position = next(one for one in what.tensors if "wpe" in one.name).elements
    state = sum(line.bytes for line in first if line.name in ("weights", "gradients", "master_weights", "optimizer"))
    outside = 18 * ((ends - position) / 8 + position)
    return (state - outside) / GIB, first["activations"].bytes / GIB


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_korthikanti_state_and_activations(name: str) -> None:
    *_, state, plain, selective, percents = KORTHIKANTI[name]
    none = korthikanti(name, sp=False, recompute=Recompute())
    assert none[0] == pytest.approx(state, rel=0.01)
    assert none[1] == pytest.approx(plain, rel=0.005)
    both = korthikanti(name, sp=True, recompute=Recompute(mode="selective"))
    assert both[1] == pytest.approx(selective, rel=0.005)
    modes = [(True, Recompute()), (False, Recompute(mode="selective")), (True, Recompute(mode="selective")),
             (False, Recompute(mode="full"))]  # fmt: skip
    for (sp, recompute), percent in zip(modes, percents, strict=True):
        left = korthikanti(name, sp=sp, recompute=recompute)[1]
        assert 100 * left / none[1] == pytest.approx(percent, abs=0.35)


#: Reserved GiB of Llama 3.1 8B on H100 of 95 GiB (torchtitan benchmarks, December 2024): ranks, compiled, GiB.
TORCHTITAN_8B = [(8, False, 82.4), (8, True, 77.0), (128, False, 67.0), (128, True, 62.0)]


@pytest.mark.parametrize(("ranks", "compiled", "gib"), TORCHTITAN_8B)
def test_torchtitan_8b_reserved(ranks: int, compiled: bool, gib: float) -> None:
    found = memory(
        "llama-3.1-8b", seq=8192, dp=ranks, micro_batch=2, global_batch=2 * ranks, implementation="torchtitan",
        version="2024-12", recipe=recipe("fsdp"), zero=3, recompute=Recompute(mode="op"), compiled=compiled,
        gpu="H100 SXM5 96GB (HBM2e)",
    )  # fmt: skip
    assert found.reserved_bytes / GIB == pytest.approx(gib, rel=0.05)
    assert found.reserved.low <= gib * GIB <= found.reserved.high


# What users asked and maintainers answered.


def test_zero_3_does_not_shrink_what_is_gathered_and_kept() -> None:
    """DeepSpeed issue 4093: GPT-J-6B under ZeRO-3 with offload takes as much on two GPUs as on four."""
    estimate = 4 * 50_400 * 4096 / GIB
    assert estimate == pytest.approx(0.77, abs=0.005)
    what = model_from_config(
        {"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50_400, "n_positions": 2048,
         "rotary_dim": 64, "torch_dtype": "float16"}, name="gpt-j-6b", source="issue",
    )  # fmt: skip
    found = [
        memory(what, dp=dp, seq=2048, implementation="deepspeed", zero=3, recipe=recipe("zero-bf16"), global_batch=8,
               offload=Offload(optimizer=1.0))
        for dp in (2, 4)
    ]  # fmt: skip
    fixed = [line_bytes(one, "activations", "logits", "communication", "offload_buffers") for one in found]
    assert fixed[0] == pytest.approx(fixed[1], rel=0.03)  # what is on its way to the host is a shard
    assert line_bytes(found[0], "communication") >= estimate * GIB / 2  # the embedding, gathered in 16 bits
    assert fixed[0] > 3 * line_bytes(found[1], "weights")  # so most of what remains does not scale
    assert line_bytes(found[0], "weights") == pytest.approx(2 * line_bytes(found[1], "weights"))


def test_collectives_of_tensor_parallelism_under_fsdp2_are_warned_of() -> None:
    """torchtitan issue 735: recordStream keeps freed blocks of TP collectives alive; the remedy is named."""
    found = memory("llama-3.1-8b", tp=4, dp=2, implementation="torchtitan", zero=3, recipe=recipe("fsdp"))
    assert any("TORCH_NCCL_AVOID_RECORD_STREAMS=1" in warning.message for warning in found.warnings)
    alone = memory("llama-3.1-8b", dp=8, implementation="torchtitan", zero=3, recipe=recipe("fsdp"))
    assert not any(warning.code == "record_streams" for warning in alone.warnings)


def test_reserved_over_allocated_of_healthy_and_leaking_runs() -> None:
    """Megatron-LM pull request 6885: blocks bound to a one-shot stream held 20,964 MiB: 1.192 fell to 1.089."""
    leaking, mended = 242_670 / 203_503.89, 221_706 / 203_503.89
    assert 242_670 - 221_706 == 20_964
    found = memory("llama-3.1-70b", tp=8, dp=8, zero=3, global_batch=64)
    ratio, highest = found.reserved_bytes / found.allocated_bytes, found.reserved.high / found.allocated_bytes
    assert 1 < ratio < leaking
    assert mended < highest < leaking


def test_pure_bf16_fsdp_of_a_70b_on_16_gpus() -> None:
    """llama-cookbook issue 120: 42 GB allocated, 59 active, 63 reserved; states alone are 32.1 GiB."""
    found = memory(
        "llama-2-70b", dp=16, seq=4096, micro_batch=1, global_batch=16, implementation="transformers", zero=3,
        recipe=recipe("pure-bf16"), optimizer=optimizer("adamw-like-weights"), recompute=Recompute(mode="full"),
    )  # fmt: skip
    states = 8 * sum(one.elements for one in catalogue_model("llama-2-70b").tensors) / 16 / GIB
    assert states == pytest.approx(32.1, rel=0.01)
    assert 42 <= found.reserved_bytes / 1e9 <= 63
    assert found.allocated_bytes / 1e9 == pytest.approx(42, rel=0.15)


def catalogue_model(name: str) -> Model:
    return model_from_config(
        {key: value for key, value in catalogue.config(name).items() if not key.startswith("_")}, name=name, source=""
    )


def test_synchronous_checkpoint_stages_fourteen_bytes_a_parameter() -> None:
    """Megatron-LM fork pull request 61: 744 billion parameters, 14 bytes each, over 16 nodes: about 650 GB a node."""
    what = catalogue_model("deepseek-v3")
    plan = TrainingPlan(layout=Layout(tp=8, pp=4, dp=2), recipe=recipe("bf16"), zero=1)
    nodes = Cluster.of(cluster(64).accelerator, 64, gpus_per_node=4)
    staged = checkpoint_staging_bytes(what, plan, nodes)
    weights = sum(one.elements for one in what.tensors if one.part != "mtp")
    assert staged == pytest.approx(14 * weights / 16, rel=0.03)
    per_parameter = staged * 16 / weights
    assert per_parameter * 744e9 / 16 == pytest.approx(651e9, rel=0.03)


def test_logits_are_whole_unless_the_loss_is_fused() -> None:
    """NeMo Automodel issue 3907: masked and chunked losses materialise all logits; fusing with the output matrix does not."""
    found = {}
    for loss in ("full", "chunked", "fused"):
        found[loss] = memory(
            "gpt-oss-20b", seq=4096, micro_batch=8, implementation="transformers", zero=3, dp=8, loss=loss,
            recipe=recipe("fsdp"), global_batch=64,
        )  # fmt: skip
    whole = 8 * 4096 * 201_088 * 2
    assert line_bytes(found["full"], "logits") > line_bytes(found["chunked"], "logits") > whole
    assert line_bytes(found["fused"], "logits") < whole


def test_a_published_optimization_ladder_falls_step_by_step() -> None:
    """torchtune's ladder for Llama 3.2 3B, batch 2 of 4,096 tokens on one A100: each technique lowers the peak."""
    full = Recompute(mode="full")
    steps: list[dict[str, object]] = [
        {},
        {"compiled": True},
        {"loss": "chunked"},
        {"recompute": full},
        {"optimizer_in_backward": True},
        {"offload": Offload(activations=1.0)},
        {"optimizer": optimizer("adamw-8bit")},
    ]
    plan: dict[str, object] = {"optimizer": optimizer("adamw-like-weights")}
    peaks = []
    for step in steps:
        plan |= step
        peaks.append(
            memory(
                "llama-3.2-3b", seq=4096, micro_batch=2, global_batch=2, implementation="torchtune", zero=0,
                recipe=recipe("pure-bf16"), **plan,  # type: ignore[arg-type]
            ).allocated_bytes / GIB
        )  # fmt: skip
    assert all(later < earlier for earlier, later in pairwise(peaks))
    adapters = training_memory(
        catalogue_model("llama-3.2-3b"), cluster(1),
        TrainingPlan(micro_batch=2, implementation="torchtune", zero=0, recipe=recipe("pure-bf16"), loss="chunked",
                     recompute=full, offload=Offload(activations=1.0)),
        TrainingWorkload(seq=4096, global_batch=2, method="qlora", rank=8),
    )  # fmt: skip
    assert adapters.allocated_bytes / GIB == pytest.approx(4.6, rel=0.06)
    assert state_bytes(adapters) < 2.5 * GIB
