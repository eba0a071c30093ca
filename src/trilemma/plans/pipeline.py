"""Which layers each stage of a pipeline holds: the one placement that memory, time and exported files share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from trilemma.errors import InputError

#: Schedules that put chunks i and 2p − 1 − i on stage i, so that both ends of the model meet on the first stage (Qi et al.
#: 2024b; DualPipeV).
V_SHAPED = ("zbv", "v-half", "v-min", "dualpipev")


def stage_sizes(layers: int, pp: int) -> list[int]:
    """Layers on each of ``pp`` stages: even, what is left over on the later stages but not the last.

    vllm/distributed/utils.py, get_pp_indices: remaining layers go to the second last stage, the third last, … so that
    the last, which also holds the head, gets none. Raises `InputError` when a stage would be empty.
    """
    if not 1 <= pp <= layers:
        raise InputError(f"--pp {pp} does not fit {layers} layers; use 1 to {layers}")
    sizes = [layers // pp] * pp
    for extra in range(layers % pp):
        sizes[-2 - extra] += 1
    return sizes


def piece_sizes(layers: int, pp: int, vpp: int, *, mtp: int = 0, sizes: Sequence[int] | None = None) -> list[int]:
    """Decoder layers of each of ``pp · vpp`` pieces of the pipeline, in the order of the model.

    ``sizes`` states those of each stage, dealt to its chunks with the odd ones first. Else even, the rest on later pieces
    but not the last, which has the head; ``mtp`` prediction layers beside the head count as layers of the last piece. Up to two
    pieces may hold no layer: the last the head alone, the first the embedding alone (Megatron-LM's account-for-loss and
    account-for-embedding-in-pipeline-split).
    """
    pieces = pp * vpp
    if sizes is not None:
        return [sizes[rank] // vpp + (chunk < sizes[rank] % vpp) for chunk in range(vpp) for rank in range(pp)]
    if pieces > layers:
        return [0] * (pieces - layers - 1) + [1] * layers + [0]
    even = stage_sizes(layers + mtp, pieces)
    short = max(mtp - even[-1], 0)
    even[-1] = max(even[-1] - mtp, 0)
    for piece in range(pieces - 1, 0, -1):
        taken = min(short, even[piece])
        even[piece] -= taken
        short -= taken
    return even


def stage_of(piece: int, pp: int, schedule: str) -> int:
    """The stage that holds a piece: piece mod pp (Narayanan et al. 2021, section 2.2), or up and down again (V-shaped)."""
    if schedule in V_SHAPED and (piece // pp) % 2:
        return pp - 1 - piece % pp
    return piece % pp


@lru_cache(maxsize=4096)
def stage_layers(
    layers: int, pp: int, vpp: int, schedule: str, *, mtp: int = 0, sizes: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Layers of every stage, prediction layers among those of the stage with the head."""
    vpp = 2 if schedule in V_SHAPED and pp > 1 else vpp
    counts = [0] * pp
    pieces = piece_sizes(layers, pp, vpp, mtp=mtp, sizes=sizes)
    for piece, size in enumerate(pieces):
        counts[stage_of(piece, pp, schedule)] += size
    counts[stage_of(len(pieces) - 1, pp, schedule)] += mtp
    return tuple(counts)
