"""Collectives between ranks that a launcher started: each size timed on all of them, the slowest rank counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from trilemma.errors import InputError
from trilemma.measuring.clock import summary
from trilemma.measuring.device import Device
from trilemma.measuring.kernels import BenchFigure

#: Bytes of a message; collectives by what one rank sends, as a share of the message (nccl-tests, PERFORMANCE.md).
_SIZES = (4 << 10, 1 << 20, 16 << 20)
_CARD_SIZES = (4 << 10, 1 << 20, 64 << 20, 512 << 20)
_BUS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
}
_ROUNDS = 15


def world() -> tuple[int, int]:
    """(rank, ranks) as torchrun says; (0, 1) without it."""
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise InputError("RANK and WORLD_SIZE are not numbers; start this with torchrun --nproc-per-node N") from None


def collective_figures(device: Device, *, rounds: int = _ROUNDS) -> list[BenchFigure]:
    """Bus bandwidth of each collective at each size, and seconds of the smallest, between the ranks of torchrun.

    NCCL or RCCL on cards, gloo between processors. Raises `InputError` where ranks do not find each other.
    """
    import torch.distributed as distributed

    _, ranks = world()
    try:
        distributed.init_process_group("nccl" if device.on_card else "gloo")
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the ranks do not find each other: {str(error)[:160]}; start them with torchrun") from None
    try:
        found = []
        for name, share in _BUS.items():
            for size in _CARD_SIZES if device.on_card else _SIZES:
                call = _call(device, distributed, name, size, ranks)
                if call is None:
                    continue
                timing = summary(_rounds(device, distributed, call, rounds))
                shape, smallest = f"{name} of {_size(size)}, {ranks} ranks", size == _SIZES[0]
                figure = f"{name}_s" if smallest else f"{name}_bytes_per_s"
                value = timing.median_s if smallest else share(ranks) * size / timing.median_s
                found.append(BenchFigure(figure=figure, shape=shape, value=value, timing=timing))
        return found
    finally:
        distributed.destroy_process_group()


def _call(device: Device, distributed: Any, name: str, size: int, ranks: int) -> Callable[[], object] | None:
    whole = device.random(size // 4)
    part = device.random(max(size // 4 // ranks, 1))
    parts = device.random(len(part) * ranks)
    if name == "all_reduce":
        return lambda: distributed.all_reduce(whole)
    if name == "all_gather":
        return lambda: distributed.all_gather_into_tensor(parts, part)
    if (
        not device.on_card
    ):  # gloo scatters sums by way of an all-reduce, and has no all-to-all of one tensor in older releases
        return None
    if name == "reduce_scatter":
        return lambda: distributed.reduce_scatter_tensor(part, parts)
    other = device.random(len(parts))
    return lambda: distributed.all_to_all_single(other, parts)


def _rounds(device: Device, distributed: Any, call: Callable[[], object], rounds: int) -> Sequence[float]:
    """Seconds of every round on the slowest rank."""
    torch = device.torch
    for _ in range(3):
        call()
    mine = []
    for _ in range(rounds):
        distributed.barrier()
        device.watch.wait()
        started = time.perf_counter()
        call()
        device.watch.wait()
        mine.append(time.perf_counter() - started)
    told = torch.tensor(mine, dtype=torch.float64, device=device.place)
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
    return [float(one) for one in told.tolist()]


def _size(n_bytes: int) -> str:
    return f"{n_bytes >> 20} MiB" if n_bytes >= 1 << 20 else f"{n_bytes >> 10} KiB"
