"""Buckets in which PyTorch's replicas reduce gradients.

torch.nn.parallel.DistributedDataParallel, gradient_as_bucket_view (off unless asked for): "This can reduce peak memory usage,
where the saved memory size will be equal to the total gradients size".
"""

from __future__ import annotations

from typing import Any

import pytest
from training_plans import memory

from trilemma.plans import recipe
from trilemma.quantities import GIB

#: Parameters of Llama-3.2-1B, whose head is its embedding (its model card: 1.24 billion).
_PARAMETERS = 1_235_814_400


def _total(*, dp: int, **given: Any) -> float:
    plan = {"implementation": "accelerate", "recipe": recipe("amp"), "zero": 0, "sp": False, **given}
    found = memory("llama-3.2-1b", seq=512, global_batch=dp, dp=dp, **plan)
    context = found.ledger.get("context")
    assert context is not None
    return float(found.device_bytes) - float(context.bytes)


@pytest.mark.parametrize(("name", "gradient_bytes"), [("amp", 4), ("pure-bf16", 2)])
def test_replicas_hold_gradients_twice(name: str, gradient_bytes: int) -> None:
    """The second and every further replica adds the bytes of all gradients to what each holds; micro-batches are one a rank."""
    alone, two, eight = (_total(dp=dp, recipe=recipe(name)) for dp in (1, 2, 8))
    assert two - eight == pytest.approx(0.0, abs=0.01 * GIB)
    assert eight - alone == pytest.approx(gradient_bytes * _PARAMETERS, rel=0.01)


@pytest.mark.parametrize("given", [{"implementation": "deepspeed"}, {"implementation": "megatron"}, {"zero": 3}])
def test_others_reduce_what_they_hold(given: dict[str, Any]) -> None:
    """DeepSpeed and Megatron-LM reduce gradients where they lie, FSDP those of a layer."""
    plan = {"implementation": "accelerate", "recipe": recipe("amp"), "zero": 0, "sp": False, **given}
    line = memory("llama-3.2-1b", seq=512, global_batch=8, dp=8, **plan).ledger.get("communication")
    assert line is None or float(line.bytes) < 3 * _PARAMETERS


def test_buckets_hold_what_is_trained() -> None:
    """Adapters of rank 8 on the queries alone: 16 layers of 8 · (2048 + 2048) in FP32, twice."""
    work = {"method": "lora", "rank": 8, "targets": ("q_proj",)}
    assert _total(dp=8, work=work) - _total(dp=1, work=work) == pytest.approx(16 * 8 * 4096 * 4, rel=0.05)
