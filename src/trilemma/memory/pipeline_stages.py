"""Which decoder layers each training pipeline stage holds, and how many micro-batches it holds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.plans.pipeline import V_SHAPED, piece_sizes, stage_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """``counts`` (stages, kinds) of decoder layers; ``first`` and ``last`` (stages,) copies of embedding and head.

    ``index`` (stages,) is the position in the pipeline: stages that cannot be the fullest may be left out.
    """

    counts: NDArray[Any]
    first: NDArray[Any]
    last: NDArray[Any]
    index: NDArray[Any]


def place_layers(
    order: Sequence[int],
    n_kinds: int,
    *,
    pp: int,
    vpp: int,
    schedule: str,
    sizes: Sequence[int] | None = None,
    mtp: int = 0,
) -> Stages:
    """Layers (as kinds, in order) dealt to ``pp`` stages of ``vpp`` chunks (`plans.pipeline`); ``mtp`` layers follow the last.

    Chunk c goes to stage c mod pp (interleaved, Narayanan et al. 2021, section 2.2), or up and down again (V-shaped, Qi et
    al. 2024). DualPipe (DeepSeek-V3, section 3.2.1) holds stage i and its mirror on every rank. Layers that do not divide
    evenly lie on later chunks. Raises `InputError` where more chunks would be empty than the model has ends.
    """
    if schedule in V_SHAPED:
        vpp = 2
    chunks = pp * vpp
    if chunks > len(order) + 2:
        raise InputError(
            f"--pp {pp}{f' with --vpp {vpp}' if vpp > 1 else ''} needs {chunks} pieces of {len(order)} layers;"
            f" use at most {len(order) + 2}"
        )
    if sizes is not None and (len(sizes) != pp or sum(sizes) != len(order)):
        raise InputError(f"pipeline layers {list(sizes)} are not {pp} stages with {len(order)} layers in all")
    pieces = piece_sizes(len(order), pp, vpp, mtp=mtp, sizes=sizes)
    counts = np.zeros((pp, n_kinds), dtype=np.int64)
    first, last = np.zeros(pp), np.zeros(pp)
    start = 0
    for chunk, size in enumerate(pieces):
        stage = stage_of(chunk, pp, schedule)
        np.add.at(counts[stage], list(order[start : start + size]), 1)
        first[stage] += chunk == 0
        last[stage] += chunk == len(pieces) - 1
        start += size
    if schedule == "dualpipe":
        counts, first, last = counts + counts[::-1], first + first[::-1], last + last[::-1]
    return Stages(counts=counts, first=first, last=last, index=np.arange(pp))


def could_be_fullest(stages: Stages) -> Stages:
    """Without stages that a stage earlier in the pipeline matches or beats in every layer kind and both ends."""
    table = np.column_stack([stages.counts, stages.first, stages.last])
    # Most stages are copies of an earlier one: the first of each kind is compared.
    _, firsts = np.unique(table, axis=0, return_index=True)
    keep: list[int] = []
    for stage in sorted(firsts.tolist()):
        if not any((table[other] >= table[stage]).all() for other in keep):
            keep.append(stage)
    rows = np.asarray(keep)
    return Stages(
        counts=stages.counts[rows], first=stages.first[rows], last=stages.last[rows], index=stages.index[rows]
    )


def in_flight(schedule: str, *, stage: Any, pp: Any, vpp: Any, micro_batches: Any) -> Any:
    """Micro-batches whose activations a stage holds at once, in units of all its layers; scalars or arrays.

    GPipe (Huang et al. 2019): all m. 1F1B (Narayanan et al. 2019) and ZB-H1: ``min(p − i, m)``. Interleaved 1F1B:
    ``min(2(p − i − 1) + (v − 1)p + 1, v·m) / v``, for i = 0 Korthikanti et al. 2022's factor ``1 + (p − 1)/(p·v)``.
    ZB-H2 (Qi et al. 2023): ``2(p − i) − 1``. ZB-V, V-Half, V-Min (Qi et al. 2024): p, about p/2 + 1 and p/3 + 2 chunk pairs
    on every stage.
    DualPipe and DualPipeV (DeepSeek-V3, Table 2): p + 1 on every rank. One after the other: one.
    """
    p, i, m, v = np.asarray(pp), np.asarray(stage), np.asarray(micro_batches), np.asarray(vpp)
    match schedule:
        case "gpipe":
            held: Any = m + 0 * i
        case "sequential":
            held = 1 + 0 * i * m
        case "interleaved":
            held = np.minimum(2 * (p - i - 1) + (v - 1) * p + 1, v * m) / v
        case "zb-h2":
            held = 2 * (p - i) - 1
        case "zbv":
            held = p + 0 * i
        case "v-half":
            held = np.ceil(p / 2) + 1 + 0 * i
        case "v-min":
            held = np.ceil(p / 3) + 2 + 0 * i
        case "dualpipe":
            held = (p + 1) / 2 + 0 * i  # counted over the layers of both directions
        case "dualpipev":
            held = p + 1 + 0 * i
        case _:
            held = p - i
    return np.minimum(held, m)
