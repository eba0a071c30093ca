"""Who makes the answers: processes beside the server, so that a long question holds neither the others nor the page.

An answer that takes too long ends with the process that makes it, which begins anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trilemma.errors import InputError
from trilemma.web.asking import KeptAnswer, made

#: Characters of an announcement.
_LINE = 4096


class NoAnswer(Exception):
    """An answer that was not made: too many wait, its time is over, or it failed."""


class Threads:
    """Answers made in threads of this process."""

    async def make(self, kind: str, asked: Mapping[str, str], *, within_s: float) -> KeptAnswer:
        """Raises `InputError`, `PermissionError`, and `TimeoutError` after ``within_s``."""
        return await asyncio.wait_for(asyncio.to_thread(made, kind, asked), within_s)

    def begin(self) -> None:
        """Nothing is to be begun."""

    async def end(self) -> None:
        """Nothing is to be ended."""


class Workers:
    """Answers made by ``count`` processes, one each at a time."""

    def __init__(self, count: int) -> None:
        self._all = [_Worker() for _ in range(count)]
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """Start the processes; they read what they need while nobody waits."""
        for one in self._all:
            self._free.put_nowait(one)
            task = asyncio.get_running_loop().create_task(one.begin())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._all:
            await one.end()

    async def make(self, kind: str, asked: Mapping[str, str], *, within_s: float) -> KeptAnswer:
        """Raises `InputError` for what is refused, `TimeoutError` after ``within_s``, `NoAnswer` where a process failed."""
        worker = await self._free.get()
        try:
            return await asyncio.wait_for(worker.make(kind, asked), within_s)
        except (TimeoutError, asyncio.CancelledError):
            await worker.end()  # it may be at work on it still, and would answer the next question with it
            raise
        finally:
            self._free.put_nowait(worker)


class _Worker:
    """One process, begun when it is needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._beginning = asyncio.Lock()

    async def begin(self) -> asyncio.subprocess.Process:
        async with self._beginning:
            if self._process is None or self._process.returncode is not None:
                folder = str(Path(__file__).resolve().parents[2])
                path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
                # -P: no module of the folder in which the server was started
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "trilemma.web.worker", limit=_LINE, env={**os.environ, "PYTHONPATH": path},
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
            return self._process

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.communicate()  # what it said meanwhile, so that its pipes close

    async def make(self, kind: str, asked: Mapping[str, str]) -> KeptAnswer:
        process = await self.begin()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"kind": kind, "asked": dict(asked)}).encode() + b"\n")
            await process.stdin.drain()
            head = json.loads(await process.stdout.readline() or b"null")
            if head is None:
                raise NoAnswer("the process that made the answer ended")
            text = (await process.stdout.readexactly(head["bytes"])).decode()
        except (OSError, EOFError, NoAnswer) as error:
            await self.end()
            raise NoAnswer("this question could not be answered; ask for less") from error
        if "refused" in head:
            raise InputError(text)
        if "failed" in head:
            raise NoAnswer(f"this is a bug of ours: {text}")
        return KeptAnswer(document=text, yes=head["yes"])
