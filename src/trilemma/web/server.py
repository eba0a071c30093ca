"""The server: loopback unless told otherwise, and patient with nobody: heads, bodies and answers have their time."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds in which a request's head must be there, and in which an idle connection is kept.
_HEAD_S, _IDLE_S = 5.0, 15
#: Connections at once, and bytes of a head.
_MOST_CONNECTIONS, _MOST_HEAD_BYTES = 512, 16 << 10
#: Processes that make answers.
_WORKERS = max(2, min(4, os.cpu_count() or 2))


class HastyProtocol(H11Protocol):
    """HTTP/1.1 whose clients must send a whole head within seconds: one that drips bytes holds no place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        before = self.cycle
        asyncio.get_running_loop().call_later(_HEAD_S + _IDLE_S * (before is not None), self._end_unless_asked, before)

    def _end_unless_asked(self, before: Any) -> None:
        if self.cycle is before and not self.transport.is_closing():
            self.transport.close()


def serve(*, host: str, port: int) -> None:
    """Answer until interrupted."""
    from trilemma.web.app import application

    uvicorn.run(
        application(host=host, port=port, workers=_WORKERS), host=host, port=port, http=HastyProtocol, ws="none",
        lifespan="on", access_log=False, log_level="warning", timeout_keep_alive=_IDLE_S, limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES, server_header=False, date_header=False,
    )  # fmt: skip
