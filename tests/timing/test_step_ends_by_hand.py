"""What happens once a step, counted from published shapes: gradients and weights between replicas, the optimizer, adapters.

ZeRO: Rajbhandari et al. 2020, section 7 (volumes); Hu et al. 2021 (low-rank pairs); Jordan et al. 2024 (Newton-Schulz); FLOPs by
convention: Narayanan et al. 2021, PaLM's appendix B. Bubbles and micro-batches in flight: Qi et al. 2024, DeepSeek-V3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.pipeline_stages import in_flight, place_layers
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Offload, TrainingPlan, optimizer, recipe
from trilemma.timing.flops_conventions import attention_flops_per_token, model_flops_per_token
from trilemma.timing.schedules import bubble_s, step_s, timeline
from trilemma.timing.training_collectives import (
    Fabric,
    domains_reached,
    exchanged,
    gathered,
    members_near,
    passed_on,
)
from trilemma.timing.training_operators import training_work
from trilemma.timing.training_state_loads import state_loads
from trilemma.workloads import TrainingWorkload

#: Llama 3.1 8B: 32 layers, hidden 4,096, feed-forward 14,336, KV width 1,024, 128,256 tokens, untied.
L, H, F, KV, V = 32, 4096, 14336, 1024, 128256
DECODER = L * (H * (2 * H + 2 * KV) + 3 * H * F)
ENDS = 2 * V * H
N = DECODER + ENDS


def loads(*, model: str = "llama-3.1-8b", gpus: int = 8, share: float = 1.0, etp: float = 1.0, load: dict[str, Any] | None = None,
          **plan: Any) -> dict[str, Any]:  # fmt: skip
    plain: dict[str, Any] = {
        "layout": Layout(dp=8),
        "recipe": recipe("bf16"),
        "zero": 0,
        "optimizer": optimizer("adamw"),
    }
    given = TrainingPlan(**{**plain, **plan})
    work = TrainingWorkload(**{"seq": 4096, "global_batch": 64, **(load or {})})
    cluster = Cluster.of(find("h100-sxm"), gpus)
    return state_loads(training_work(load_model(model)), given, work, share, etp, Fabric.of(cluster))


def near(found: Any) -> float:
    return float(found[0])


#: (zero, bytes of gradients and of what comes back for each weight)
@pytest.mark.parametrize(("zero", "name", "down", "back"), [
    (0, "bf16", 4, 4), (1, "bf16", 4, 2), (2, "bf16", 4, 2), (0, "bf16-bf16-grads", 2, 2), (1, "bf16-bf16-grads", 2, 2),
    (1, "fp32", 4, 4),
])  # fmt: skip
def test_replicas_exchange_gradients(zero: int, name: str, down: int, back: int) -> None:
    found = loads(zero=zero, recipe=recipe(name))
    assert near(found["data"]) == pytest.approx(N * (down + back) * 7 / 8, rel=1e-6)
    assert near(found["shard"]) == 0
    assert float(found["data_calls"]) == 2
    assert float(loads(layout=Layout(tp=8))["data_calls"]) == 0


@pytest.mark.parametrize(("reshard", "times"), [(True, 2), (False, 1)])
def test_sharded_weights_are_gathered_for_each_micro_batch(reshard: bool, times: int) -> None:
    found = loads(zero=3, recipe=recipe("fsdp"), reshard=reshard)
    assert near(found["shard"]) == pytest.approx(N * (2 * times + 4) * 7 / 8, rel=1e-6)
    assert near(found["data"]) == 0
    assert float(found["shard_times"]) == 8  # 64 sequences on 8 ranks
    piped = loads(zero=3, recipe=recipe("fsdp"), layout=Layout(pp=2, dp=4), reshard=False)
    assert float(piped["shard_times"]) == 1
    assert float(loads(zero=2)["shard_times"]) == 1


def test_groups_of_shards_sum_theirs_once_a_step() -> None:
    found = loads(zero=3, recipe=recipe("fsdp"), shard_group=4)
    assert near(found["shard"]) == pytest.approx(N * (2 * 2 + 4) * 3 / 4, rel=1e-6)
    assert near(found["data"]) == pytest.approx(2 * (4 * N / 4) / 2, rel=1e-6)
    whole = loads(zero=3, recipe=recipe("fsdp"), shard_group=64)
    assert near(whole["data"]) == 0
    assert near(whole["shard"]) == near(loads(zero=3, recipe=recipe("fsdp"))["shard"])


def test_a_stage_holds_its_share_and_one_end() -> None:
    found = loads(layout=Layout(pp=2, dp=4), share=0.5)
    assert near(found["data"]) == pytest.approx((DECODER / 2 + ENDS / 2) * 8 * 3 / 4, rel=1e-6)
    cut = loads(layout=Layout(tp=4, dp=2))
    assert near(cut["data"]) == pytest.approx(N / 4 * 8 / 2, rel=1e-6)
    tied = loads(model="llama-3.2-1b")
    small = 16 * (2048 * (2 * 2048 + 2 * 512) + 3 * 2048 * 8192) + V * 2048
    assert near(tied["data"]) == pytest.approx(small * 8 * 7 / 8, rel=1e-6)


def test_context_ranks_are_replicas_too() -> None:
    assert near(loads(layout=Layout(cp=2, dp=4))["data"]) == near(loads()["data"])


#: (changes, bytes touched for each weight: moments and master read and written, gradients read, weights read and written)
@pytest.mark.parametrize(("change", "each"), [
    ({}, 2 * (8 + 4) + 4 + 2 * 2), ({"recipe": recipe("bf16-bf16-grads")}, 2 * 12 + 2 + 4),
    ({"recipe": recipe("fp32")}, 2 * 8 + 4 + 2 * 4), ({"recipe": recipe("pure-bf16")}, 2 * 8 + 2 + 4),
    ({"optimizer": optimizer("sgd")}, 2 * 4 + 4 + 4), ({"optimizer": optimizer("lion")}, 2 * (4 + 4) + 4 + 4),
    ({"optimizer": optimizer("adamw-bf16-moments")}, 2 * (4 + 4) + 4 + 4),
    ({"recipe": recipe("pure-bf16"), "optimizer": optimizer("adamw-like-weights")}, 2 * 4 + 2 + 4),
])  # fmt: skip
def test_what_the_optimizer_touches(change: dict[str, Any], each: float) -> None:
    assert float(loads(**change)["optimizer"]) == pytest.approx(N * each, rel=1e-6)
    shared = loads(**{**change, "zero": 1})
    assert float(shared["optimizer"]) == pytest.approx(N * each / 8, rel=1e-6)
    assert float(shared["host_optimizer"]) == float(shared["offload"]) == 0


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_an_optimizer_on_the_host(share: float) -> None:
    found = loads(zero=1, offload=Offload(optimizer=share))
    each = 2 * 12 + 4 + 4
    assert float(found["optimizer"]) == pytest.approx((1 - share) * N * each / 8, rel=1e-6)
    assert float(found["host_optimizer"]) == pytest.approx(share * N * each / 8, rel=1e-6)
    assert float(found["offload"]) == pytest.approx(share * N * (4 + 2) / 8, rel=1e-6)


def pairs(rank: int) -> int:
    """Parameters of low-rank pairs beside every matrix of the decoder, as their fused inputs count once."""
    work = training_work(load_model("llama-3.1-8b"))
    return rank * sum(one.inputs + one.outputs for one in (*work.linears, *work.feed_forward))


@pytest.mark.parametrize("rank", [8, 64])
def test_adapters_exchange_their_own_gradients(rank: int) -> None:
    found = loads(load={"method": "lora", "rank": rank})
    assert near(found["data"]) == pytest.approx(pairs(rank) / DECODER * N * 8 * 7 / 8, rel=1e-6)
    gathered_whole = loads(load={"method": "lora", "rank": rank}, zero=3, recipe=recipe("fsdp"))
    share = pairs(rank) / DECODER
    assert near(gathered_whole["shard"]) == pytest.approx(N * (2 * 2 + 4 * share) * 7 / 8, rel=1e-6)
    four_bits = loads(load={"method": "qlora", "rank": rank}, zero=3, recipe=recipe("fsdp"))
    # NF4 with quantised scales: 4 + 8 / 64 + 32 / (64 · 256) bits.
    each = (4 + 8 / 64 + 32 / (64 * 256)) / 8
    assert near(four_bits["shard"]) == pytest.approx(N * (2 * each + 4 * share) * 7 / 8, rel=1e-3)


def test_muon_multiplies_matrices_and_gathers_them() -> None:
    muon = {"optimizer": optimizer("muon")}
    found = loads(**muon)
    sizes = [(H, H), (H, H), (H, KV), (H, KV), (H, F), (H, F), (F, H)]
    step = L * sum(4 * min(one) ** 2 * max(one) + 2 * min(one) ** 3 for one in sizes)
    assert float(found["newton_schulz"].flops) == pytest.approx(5 * step, rel=1e-6)
    assert float(found["newton_schulz"].bytes) == pytest.approx(5 * 4 * 2 * DECODER, rel=1e-6)
    shared = loads(**muon, zero=1)
    assert float(shared["newton_schulz"].flops) == pytest.approx(5 * step / 8, rel=1e-6)
    assert near(shared["data"]) == pytest.approx(N * 6 * 7 / 8, rel=1e-6)
    gathers = loads(**muon, zero=2)
    assert near(gathers["data"]) == pytest.approx(N * (6 + 2) * 7 / 8, rel=1e-6)
    assert float(loads()["newton_schulz"].flops) == 0
    cut = loads(**muon, layout=Layout(tp=4, dp=2), share=0.5)
    assert float(cut["newton_schulz"].flops) == pytest.approx(5 * step / 4 / 2, rel=1e-6)


def test_experts_have_replicas_of_their_own() -> None:
    """Qwen3 30B A3B on eight ranks: eight experts' ranks leave one copy of each, four leave two."""
    work = training_work(load_model("qwen3-30b-a3b"))
    dense = work.dense_elements + work.head_elements + work.embedding_elements
    for ep, copies in ((8, 1), (4, 2), (2, 4)):
        found = near(loads(model="qwen3-30b-a3b", layout=Layout(dp=8, ep=ep))["data"])
        routed = work.expert_elements / ep
        assert found == pytest.approx(8 * (dense * 7 / 8 + routed * (copies - 1) / copies), rel=1e-6)


@pytest.mark.parametrize(("ranks", "stride", "domain", "local"), [
    (8, 1, 8, 8), (16, 1, 8, 8), (8, 2, 8, 4), (8, 8, 8, 1), (8, 16, 8, 1), (2, 1, 8, 2), (8, 3, 8, 2),
])  # fmt: skip
def test_ranks_of_one_domain(ranks: int, stride: int, domain: int, local: int) -> None:
    assert float(members_near(ranks, stride, domain)) == local


@pytest.mark.parametrize(("ranks", "stride", "shares"), [
    (1, 1, (0, 0)), (2, 1, (1 / 2, 0)), (8, 1, (7 / 8, 0)), (16, 1, (15 / 16, 1 / 2 / 8)), (16, 8, (0, 15 / 16)), (4, 4, (3 / 4,
     1 / 2 / 2)),
    (20, 1, (19 / 20, 2 / 3 / 8)),
])  # fmt: skip
def test_gathers_near_and_far(ranks: int, stride: int, shares: tuple[float, float]) -> None:
    assert [float(one) for one in gathered(1.0, ranks, stride, 8)] == pytest.approx(shares)


@pytest.mark.parametrize(("ranks", "copies", "shares"), [
    (8, 1, (7 / 8, 0)), (16, 1, (7 / 8, 1 / 2)), (32, 1, (7 / 8, 3 / 4)), (1, 1, (0, 0)),
    # Two copies reach 2 · (1 − 1/4) = 1.5 of two domains, each half of the time another one, and 16 · (1 − (15/16)²) ranks.
    (16, 2, (1.9375 / 2 * 7 / 8, 1.5 / 2 / 2)),
])  # fmt: skip
def test_exchanges_near_and_far(ranks: int, copies: int, shares: tuple[float, float]) -> None:
    assert [float(one) for one in exchanged(1.0, ranks, 1, 8, copies=copies)] == pytest.approx(shares)


def test_domains_that_a_token_reaches() -> None:
    assert domains_reached(1, 8) == 1
    assert domains_reached(4, 8) == pytest.approx(4 * (1 - 0.75**8))
    # DeepSeek-V3: four of eight groups of experts, on eight domains at most four.
    assert domains_reached(8, 8, (8, 4)) == pytest.approx(4 * (1 - 0.75**8))
    assert domains_reached(16, 8, (8, 4)) == pytest.approx(8 * (1 - (7 / 8) ** 8))
    # Four domains of two groups: hypergeometric, by enumeration of all choices of four of eight.
    from itertools import combinations

    reached = []
    for chosen in combinations(range(8), 4):
        held = [sum(group // 2 == domain for group in chosen) for domain in range(4)]
        reached.append(sum(1 - (1 - here / 4) ** 8 for here in held))
    assert domains_reached(4, 8, (8, 4)) == pytest.approx(np.mean(reached))

    # Three domains hold 2.67 groups each: between two and three in proportion.
    def by_held(held: int) -> float:
        return float(
            np.mean([(1 - len(set(chosen) & set(range(held))) / 4) ** 8 for chosen in combinations(range(8), 4)])
        )

    assert domains_reached(3, 8, (8, 4)) == pytest.approx(3 * (1 - (by_held(2) / 3 + 2 * by_held(3) / 3)))


@pytest.mark.parametrize(
    ("stride", "gpus", "far"), [(1, 8, 0), (4, 16, 0.5), (8, 16, 1), (16, 32, 1), (4, 8, 0), (2, 16, 0.25)]
)
def test_neighbours_in_other_domains(stride: int, gpus: int, far: float) -> None:
    assert [float(one) for one in passed_on(1.0, stride, gpus, 8)] == pytest.approx([1 - far, far])


def test_flops_of_a_token_by_convention() -> None:
    work, seq = training_work(load_model("llama-3.1-8b")), 8192
    head = V * H
    whole, causal = 4 * L * H * seq, 2 * L * H * seq
    assert attention_flops_per_token(work, seq, causal=False) == whole
    assert attention_flops_per_token(work, seq, causal=True) == pytest.approx(causal)
    expected = {
        "weights": 6 * (DECODER + head), "causal": 6 * (DECODER + head) + 3 * causal,
         "full": 6 * (DECODER + head) + 3 * whole,
        "full-embedding": 6 * (DECODER + 2 * head) + 3 * whole, "hardware": 8 * DECODER + 6 * head + 4 * whole,
    }  # fmt: skip
    for name, flops in expected.items():
        assert model_flops_per_token(work, seq, name) == pytest.approx(flops), name
    assert model_flops_per_token(work, seq, "full-embedding", tied=True) == pytest.approx(expected["full"])
    frozen = model_flops_per_token(work, seq, "causal", trains_adapters=True)
    assert frozen == pytest.approx(4 * (DECODER + head) + 2 * causal)
    assert model_flops_per_token(work, seq) == pytest.approx(expected["causal"])


def test_prediction_layers_make_logits_once_more() -> None:
    """DeepSeek-V3 with its prediction module: the output matrix multiplies twice, and neither is computed again."""
    work = training_work(load_model("deepseek-v3"))
    assert work.heads == 2
    attention = attention_flops_per_token(work, 4096, causal=False)
    decoder = work.active_elements - 2 * work.head_elements
    hardware = 8 * decoder + 6 * 2 * work.head_elements + 4 * attention
    assert model_flops_per_token(work, 4096, "hardware") == pytest.approx(hardware)
    assert training_work(load_model("deepseek-v3"), mtp=False).heads == 1


@pytest.mark.parametrize(("schedule", "p", "m", "held"), [
    ("v-half", 8, 20, [5] * 8), ("v-half", 5, 20, [4] * 5), ("v-min", 8, 20, [5] * 8), ("v-min", 6, 20, [4] * 6),
    ("dualpipe", 8, 20, [4.5] * 8), ("v-half", 8, 2, [2] * 8), ("1f1b", 4, 20, [4, 3, 2, 1]), ("zb-h1", 3, 20, [3, 2,
     1]),
])  # fmt: skip
def test_micro_batches_that_a_stage_holds(schedule: str, p: int, m: int, held: list[float]) -> None:
    assert in_flight(schedule, stage=np.arange(p), pp=p, vpp=1, micro_batches=m).tolist() == held


def test_more_pieces_than_layers_and_ends() -> None:
    assert place_layers([0] * 4, 1, pp=6, vpp=1, schedule="1f1b").counts[:, 0].sum() == 4
    with pytest.raises(InputError, match="--pp 7 needs 7 pieces of 4 layers; use at most 6"):
        place_layers([0] * 4, 1, pp=7, vpp=1, schedule="1f1b")
    with pytest.raises(InputError, match="--pp 4 with --vpp 2 needs 8 pieces of 4 layers"):
        place_layers([0] * 4, 1, pp=4, vpp=1, schedule="zbv")
    for sizes in ([2, 2, 2], [2, 3]):
        with pytest.raises(InputError, match="are not 2 stages with 4 layers in all"):
            place_layers([0] * 4, 1, pp=2, vpp=1, schedule="1f1b", sizes=sizes)
    assert place_layers([0] * 4, 1, pp=2, vpp=1, schedule="1f1b", sizes=[1, 3]).counts[:, 0].tolist() == [1, 3]


def idle(
    schedule: Any, *, p: int = 4, m: int = 16, v: int = 1, f: float = 1.0, i: float = 1.0, w: float = 1.0
) -> float:
    return float(bubble_s(schedule, pp=p, vpp=v, micro_batches=m, forward_s=f, input_gradient_s=i, weight_gradient_s=w))


@pytest.mark.parametrize(("schedule", "more", "seconds"), [
    ("gpipe", {}, 9.0), ("1f1b", {}, 9.0), ("interleaved", {"v": 3}, 3.0), ("zb-h1", {}, 3.0), ("zb-h2", {}, 0.0),
     ("zbv", {}, 0.0),
    ("v-half", {}, 4.5), ("v-min", {}, 6.0), ("dualpipe", {}, 1.0), ("dualpipev", {}, 1.0), ("1f1b", {"p": 1}, 0.0),
    ("zb-h1", {"f": 2.0, "i": 2.0, "w": 1.0}, 9.0), ("zb-h1", {"w": 3.0}, 0.0), ("zb-h1", {"m": 2},
     9 * (1 - 0.5 * 2 / 3)),
    # What differs between the parts is left of a zero bubble: (|F − I| + |I − W|) / 2 of each stage before.
    ("zb-h2", {"f": 2.0}, 1.5), ("zbv", {"i": 3.0}, 6.0), ("v-half", {"f": 2.0}, 7.5), ("v-min", {"f": 2.0}, 9.5),
])  # fmt: skip
def test_bubbles_as_published(schedule: str, more: dict[str, Any], seconds: float) -> None:
    assert idle(schedule, **more) == pytest.approx(seconds)


def test_a_schedule_without_a_bubble_is_refused() -> None:
    with pytest.raises(InputError, match="schedule 'x' has no known bubble"):
        idle("x")
    with pytest.raises(InputError, match="seconds of every stage"):
        timeline("1f1b", forward_s=[1.0, 1.0], input_gradient_s=[1.0], weight_gradient_s=[1.0, 1.0], micro_batches=2)
    with pytest.raises(InputError, match="seconds of every stage"):
        timeline("1f1b", forward_s=[1.0, 1.0], input_gradient_s=[1.0, 1.0], weight_gradient_s=[1.0], micro_batches=2)


def test_handing_over_takes_time_between_stages_alone() -> None:
    """Two stages, one micro-batch: forward, over, forward, backward, over, backward."""
    parts = {"forward_s": [1.0, 1.0], "input_gradient_s": [1.0, 1.0], "weight_gradient_s": [0.5, 0.5]}
    assert step_s(timeline("1f1b", **parts, micro_batches=1, hand_over_s=10.0)) == pytest.approx(
        1 + 10 + 1 + 1.5 + 10 + 1.5
    )
    alone = {name: value[:1] for name, value in parts.items()}
    assert step_s(timeline("1f1b", **alone, micro_batches=3, hand_over_s=10.0)) == pytest.approx(3 * 2.5)
