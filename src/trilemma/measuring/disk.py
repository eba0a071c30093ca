"""How fast weights come from a file to the device: read past the system's cache, then copied."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from trilemma.errors import InputError, shorten
from trilemma.measuring.clock import summary
from trilemma.measuring.device import Device
from trilemma.measuring.kernels import BenchFigure

_PIECE_BYTES = 16 * 2**20
#: What is written and read where no file is named.
QUICK_BYTES, FULL_BYTES = 128 * 2**20, 2 * 2**30


def load_rate(device: Device, folder: Path, *, n_bytes: int, repeats: int = 3) -> BenchFigure:
    """Bytes a second from a file in ``folder`` to the device, the system's cache dropped before each pass.

    Raises `InputError` where the folder takes no file of that size.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="trilemma-load-") as file:
            piece = os.urandom(2**20)
            for _ in range(n_bytes >> 20):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            rounds = [_read(device, file.fileno(), n_bytes) for _ in range(repeats)]
    except OSError as error:
        raise InputError(
            f"{shorten(str(folder))} takes no file of {n_bytes >> 20} MiB: {error.strerror}; name another with --load-from"
        ) from None
    timing = summary(rounds)
    return BenchFigure(
        figure="load_bytes_per_s", shape=f"{n_bytes >> 20} MiB from {shorten(str(folder))}", value=n_bytes / timing.median_s,
        timing=timing,
    )  # fmt: skip


def _read(device: Device, file: int, n_bytes: int) -> float:
    torch = device.torch
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, n_bytes, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(_PIECE_BYTES)
    host = torch.frombuffer(buffer, dtype=torch.uint8)
    near = torch.empty(_PIECE_BYTES, dtype=torch.uint8, device=device.place)
    device.watch.wait()
    started, at = time.perf_counter(), 0
    while at < n_bytes:
        got = os.preadv(file, [buffer], at)
        if got <= 0:
            break
        near.copy_(host)
        at += got
    device.watch.wait()
    return time.perf_counter() - started
