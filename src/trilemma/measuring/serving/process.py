"""A server that is started for a measurement, waited for, and ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

from trilemma.errors import InputError, shorten
from trilemma.measuring.serving.stream import Endpoint, get_json

_POLL_S, _END_S, _LAST_BYTES = 0.5, 15.0, 2000


@contextlib.contextmanager
def started(words: Sequence[str], endpoint: Endpoint, *, ready_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """The process of ``words`` once its server lists its models. Raises `InputError` where it ends, or is not ready in time,
    with the last line that it printed."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(list(words), stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            raise InputError(f"{shorten(words[0])} cannot be started: {error.strerror}") from None

        def last() -> str:
            log.seek(max(log.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
            lines = log.read().decode("utf-8", "replace").split("\n")
            return shorten(next((line.strip() for line in reversed(lines) if line.strip()), "nothing"), most=160)

        try:
            until = time.monotonic() + ready_s
            while asyncio.run(get_json(endpoint, f"{endpoint.base}/v1/models", stall_s=5.0)) is None:
                if process.poll() is not None:
                    raise InputError(
                        f"the server ended with code {process.returncode} before it was ready; it said: {last()}"
                    )
                if time.monotonic() > until:
                    raise InputError(f"the server is not ready after {ready_s:g} s (--ready); it said: {last()}")
                time.sleep(_POLL_S)
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children, politely first."""
    for sign, wait_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, sign)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
        if sign == signal.SIGKILL:
            return
