"""How the columns of a row lay its model out: ranks as stated, or the fewest cards that hold it."""

from __future__ import annotations

from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import runtime_total
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import Model
from trilemma.plans import Layout


def layout_of(row: Row, assumed: list[str]) -> Layout:
    tp, pp, dp = (row.whole(column, low=1, high=4096) for column in ("tp", "pp", "dp"))
    gpus = row.whole("gpus", low=1, high=65536)
    if gpus is None and tp is None:
        raise UnusableRow("names no layout")
    spread = row.text("ep").lower() in ("on", "true", "yes")  # over all ranks
    ep = 65536 if spread else row.whole("ep", low=0, high=65536) or 1
    pp, dp = pp or 1, dp or 1
    if tp is None:
        if gpus is None or gpus % (pp * dp):
            raise UnusableRow(f"{gpus} GPUs are not a multiple of pp x dp = {pp * dp}")
        tp = gpus // (pp * dp)
        if tp > 1:
            assumed.append(f"tp {tp}: what pp and dp leave of the GPUs")
    if gpus is not None and tp * pp * dp != gpus:
        if tp * pp == gpus and tp % dp == 0:
            tp //= dp  # attention-data-parallel ranks inside a tensor-parallel group
        elif tp * pp * dp == 1 and ep == gpus:
            tp = gpus
            assumed.append(f"tp {tp}: the row spreads experts over {gpus} GPUs and cuts nothing else")
        else:
            raise UnusableRow(f"tp {tp} x pp {pp} x dp {dp} is not {gpus} GPUs")
    return Layout(tp=tp, pp=pp, dp=dp, ep=min(ep, tp * dp))


#: Weights of a replica take at most this share of its cards: less room would hold few requests.
_WEIGHTS_SHARE = 0.7


def replicas_of(row: Row, layout: Layout, model: Model, accelerator: Accelerator, assumed: list[str]) -> Layout:
    """A run without latency to mind and without a layout: replicas over the fewest cards that hold the weights."""
    if any(row.text(column) for column in ("tp", "pp", "dp", "ep")) or int(layout.gpus) == 1:
        return layout
    n_bytes, gpus = float(sum(tensor.bytes for tensor in model.tensors)), int(layout.gpus)
    room = runtime_total(accelerator).interval.value * _WEIGHTS_SHARE
    ranks = next((n for n in range(1, gpus + 1) if gpus % n == 0 and n_bytes <= n * room), gpus)
    assumed.append(f"{gpus // ranks} replicas of {ranks} GPUs: the fewest that hold the weights")
    return Layout(tp=ranks, dp=gpus // ranks)
