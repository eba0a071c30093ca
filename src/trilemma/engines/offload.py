"""What ``--cpu-offload-gb`` leaves in the host's memory, and how the card reads it.

Sources: vllm-project/vllm model_executor/models/utils.py (maybe_offload_to_cpu) and model_executor/offloader/uva.py: the
parameters of the layers that a rank builds, one after another, until so many bytes lie on the host; pinned, and read over
PCIe by the kernels of each pass. sgl-project/sglang srt/utils/offloader.py takes the same parameters and copies each whole
before its layer runs, experts that no token wakes among them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trilemma.models.architecture import Model, Tensor
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import Numbers, ceil_div
from trilemma.timing.host_weights import HostPart


def offloaded(
    model: Model, layout: Layout, options: ServeOptions, *, batched_tokens: Numbers, copied_whole: bool = False
) -> HostPart | None:
    """The host's part of a single plan, None without the option. Each rank keeps ``cpu_offload_bytes`` of its own there.

    ``copied_whole``: stacks of experts pass over PCIe with all that they hold.
    """
    if not options.cpu_offload_bytes or layout.is_table:
        return None
    stages, ranks = int(layout.pp), int(layout.tp)
    depth = -(-len(model.layers) // stages)
    names: set[str] = set()
    for stage in range(stages):
        held = 0.0
        for tensor in _of_layers(model, stage * depth, (stage + 1) * depth):
            if held >= options.cpu_offload_bytes:
                break
            names.add(tensor.name)
            held += tensor.bytes * _share(tensor, ranks)
    return HostPart(
        tensors=frozenset(names),
        read_by_card=True,
        copied_whole=copied_whole,
        micro_batch=float(np.asarray(batched_tokens).max()),
    )


def _of_layers(model: Model, first: int, end: int) -> Iterator[Tensor]:
    found = [
        tensor
        for tensor in model.of_part("layers")
        if tensor.layer is not None and first <= tensor.layer < end and len(tensor.shape) > 1
    ]
    yield from sorted(found, key=lambda tensor: tensor.layer or 0)


def _share(tensor: Tensor, ranks: int) -> float:
    return 1.0 if tensor.shard == "none" else float(ceil_div(tensor.shard_units, ranks)) / max(tensor.shard_units, 1)
