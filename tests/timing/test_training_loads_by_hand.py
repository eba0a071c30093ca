"""Work of one micro-batch of training, counted by hand from the published shape of Llama 3.1 8B."""

from __future__ import annotations

import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Recompute, TrainingPlan, recipe
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_loads import Loads, training_loads
from trilemma.timing.training_operators import training_work
from trilemma.workloads import TrainingWorkload

#: config.json: 32 layers, hidden 4,096, 32 heads and 8 KV heads of 128, feed-forward 14,336, 128,256 tokens.
_LAYERS, _HIDDEN, _Q, _KV, _FFN, _VOCAB, _SEQ = 32, 4096, 4096, 1024, 14336, 128256, 4096
_ROWS = _SEQ * _HIDDEN * 2


def loads(*, gpus: int = 8, seq: int = _SEQ, micro: int = 1, **layout: int) -> Loads:
    plan = TrainingPlan(layout=Layout(**layout), recipe=recipe("bf16"), zero=1, schedule="1f1b", micro_batch=micro)
    cluster = Cluster.of(find("h100-sxm"), gpus)
    load = TrainingWorkload(seq=seq, global_batch=16)
    return training_loads(training_work(load_model("llama-3.1-8b")), plan, load, Fabric.of(cluster))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_products_of_a_forward_pass(tp: int) -> None:
    found = loads(tp=tp, dp=8 // tp)
    assert found.linear.flops == 2 * _SEQ * _LAYERS * _HIDDEN * (2 * _Q + 2 * _KV) / tp
    assert found.feed_forward.flops == 2 * _SEQ * _LAYERS * 3 * _HIDDEN * _FFN / tp
    assert found.head.flops == 2 * _SEQ * _HIDDEN * _VOCAB / tp
    assert found.head.bytes == 2 * _HIDDEN * _VOCAB / tp + 2 * _SEQ * (_HIDDEN + _VOCAB / tp)
    # Causal: half of the pairs (Dao 2023, section 4.1).
    assert found.attention.flops == 4 * _Q * _SEQ * _SEQ / 2 * _LAYERS / tp
    assert found.logits == 2 * _SEQ * _VOCAB / tp
    assert found.micro_batches == 16 / (8 // tp)
    assert found.tokens == _SEQ * 16 / 8


def test_bytes_of_products_are_weights_and_rows() -> None:
    found = loads(dp=8)
    gate_up_down = 3 * _HIDDEN * _FFN
    rows = _HIDDEN + 2 * _FFN + _FFN + _HIDDEN
    assert found.feed_forward.bytes == pytest.approx(2 * _LAYERS * (gate_up_down + _SEQ * rows), rel=0.05)
    assert found.linear.bytes == pytest.approx(
        2 * _LAYERS * (_HIDDEN * (2 * _Q + 2 * _KV) + _SEQ * (_HIDDEN + _Q + 2 * _KV + _Q + _HIDDEN)), rel=0.12
    )


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_volume(tp: int) -> None:
    # Two collectives of the hidden rows a layer and pass, of which (n − 1)/n crosses a link (Korthikanti et al. 2022, 4.2).
    found = loads(tp=tp, dp=8 // tp)
    near, far = found.tensor
    assert near == 2 * _LAYERS * _ROWS * (tp - 1) / tp
    assert far == 0
    assert found.tensor_calls == 2 * _LAYERS
    assert loads(dp=8).tensor_calls == 0


def test_replicas_reduce_gradients_in_32_bits_and_gather_weights_in_16() -> None:
    near, far = loads(dp=8).data
    assert near == pytest.approx(8.03e9 * (4 + 2) * 7 / 8, rel=1e-3)
    assert far == 0
    _, far = loads(dp=16, gpus=16).data
    assert far > 0


@pytest.mark.parametrize("pp", [2, 4])
def test_stages_hold_their_layers(pp: int) -> None:
    one, found = loads(dp=8), loads(pp=pp, dp=8 // pp)
    for name in ("linear", "feed_forward", "attention"):
        assert getattr(found, name).flops == getattr(one, name).flops / pp
    assert found.head.flops == one.head.flops
    assert found.pointwise == pytest.approx(one.pointwise / pp)
    assert sum(found.pipeline) > 0
    assert sum(one.pipeline) == 0


def test_longer_sequences_and_larger_batches() -> None:
    one, long, two = loads(dp=8), loads(dp=8, seq=2 * _SEQ), loads(dp=8, micro=2)
    assert long.linear.flops == two.linear.flops == 2 * one.linear.flops
    assert long.attention.flops == 4 * one.attention.flops
    assert two.attention.flops == 2 * one.attention.flops
    assert two.micro_batches == one.micro_batches / 2
    assert long.logits == two.logits == 2 * one.logits


def test_full_recompute_does_the_forward_pass_again() -> None:
    plan = TrainingPlan(
        layout=Layout(dp=8), recipe=recipe("bf16"), zero=1, schedule="1f1b", recompute=Recompute(mode="full")
    )
    cluster = Cluster.of(find("h100-sxm"), 8)
    load = TrainingWorkload(seq=_SEQ, global_batch=16)
    found = training_loads(training_work(load_model("llama-3.1-8b")), plan, load, Fabric.of(cluster))
    assert (found.passes.linears, found.passes.feed_forward) == ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    assert found.passes.attention[2] == 1.0
    assert loads(dp=8).passes.linears == (1.0, 1.0, 0.0)
