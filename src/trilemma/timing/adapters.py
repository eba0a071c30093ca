"""Seconds that low-rank adapters add to a step of serving: kernels, weights, products, and their way to the card."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trilemma.memory.adapter_slots import AdapterSlots, SlotBytes, slotted
from trilemma.models.architecture import Model
from trilemma.plans import Layout
from trilemma.timing.host_weights import copied_bytes_per_s
from trilemma.timing.machine import Machine
from trilemma.timing.roofline import peak_flops

#: Kernels on each module with adapters: the input times A, and that times B onto the output.
_KERNELS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterCost:
    """What adapters of one rank add: ``launches_s`` to a step in which any sequence has one, ``adapter_s`` for each that is among
    them (its weights are read), ``row_s`` for each token that passes one; ``load_s`` brings one from the host's memory.
    """

    launches_s: float
    adapter_s: float
    row_s: float
    load_s: float

    def slower(self, factor: float) -> AdapterCost:
        return AdapterCost(
            launches_s=self.launches_s * factor, adapter_s=self.adapter_s * factor, row_s=self.row_s * factor,
            load_s=self.load_s * factor,
        )  # fmt: skip

    def step_s(self, adapters: int, rows: int) -> float:
        """Seconds that ``adapters`` of the ``rows`` tokens of a step add to it; reads and products run one behind the other."""
        return self.launches_s + max(adapters * self.adapter_s, rows * self.row_s) if adapters else 0.0


def adapter_cost(model: Model, machine: Machine, layout: Layout, slots: AdapterSlots) -> AdapterCost:
    """The cost of adapters of ``slots.rank`` on ``model``, on the fullest rank of ``layout``.

    Two kernels on each module that has an adapter, projections that engines keep in one matrix as one module; ``rank · (in +
    out)`` weights of each layer read at the share of bandwidth of 16-bit weights and multiplied at that of dense products.
    Loading copies both matrices of each module over PCIe (or what joins host and card), a launch for each.

    Seconds. Source: vllm/lora/punica_wrapper/punica_gpu.py, add_lora_linear (add_shrink, add_expand), and
    vllm/lora/lora_model.py and worker_manager (activate_adapter copies slot by slot); Chen et al. 2023, Punica.
    """
    one = AdapterSlots(
        slots=1,
        rank=slots.rank,
        format=slots.format,
        targets=slots.targets,
        experts=slots.experts,
        sharded=slots.sharded,
    )
    tp = np.asarray(layout.tp)
    held, _ = SlotBytes(model, one).on_rank(
        start=0,
        stop=len(model.layers),
        first=True,
        last=True,
        tp=tp,
        ep=np.asarray(layout.ep),
        expert_tp=tp * layout.dp,
    )
    bytes_on_rank, tensors = float(np.asarray(held)), slotted(model, one)
    modules = len({(tensor.layer, tensor.role.partition(".")[0], tensor.shard, tensor.shape[-1]) for tensor in tensors})
    numbers = machine.coefficients
    kernel_s = float(np.asarray(numbers.kernel_s))
    stream = machine.bandwidth * min(float(np.asarray(numbers.stream_share(16))), 1.0)
    flops = 2.0 * bytes_on_rank / (slots.format.bits / 8)
    return AdapterCost(
        launches_s=_KERNELS * modules * kernel_s,
        adapter_s=bytes_on_rank / stream,
        row_s=flops / (peak_flops(machine.accelerator, "bf16") * float(np.asarray(numbers.matmul_share("bf16")))),
        load_s=bytes_on_rank / copied_bytes_per_s(machine.cluster, ranks=int(np.max(tp)))
        + _KERNELS * len(tensors) * kernel_s,
    )
