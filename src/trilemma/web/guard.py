"""What stands before every request: this server's own name, limits of length and rate, and the policy of every response."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi.responses import JSONResponse, PlainTextResponse, Response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Questions of one client a second, and at once; clients remembered.
_RATE, _BURST, _CLIENTS = 300.0, 600.0, 4096
_MOST_QUERY = 8192
#: Nothing comes from elsewhere and no script runs but those of the page: expressions of charts are interpreted, not compiled.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """ASGI middleware; ``host`` and ``port`` are those that the server is reached by."""

    def __init__(self, app: Callable[..., Awaitable[None]], *, host: str, port: int) -> None:
        self._app, self._rates = app, _Rates()
        self._own = {f"{name}:{port}" for name in _LOOPBACK} if host in (*_LOOPBACK, "::1") else None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Message) -> Response | None:
        """Why a request goes no further: another host's name for this one, too long, or too many."""
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if self._own is not None and named not in self._own:
            return PlainTextResponse("this server answers to its own name alone", status_code=421)
        if len(scope["query_string"]) > _MOST_QUERY:
            return JSONResponse({"error": "the query is longer than is read here"}, status_code=414)
        client = scope.get("client")
        if not self._rates.allows(client[0] if client else ""):
            return JSONResponse({"error": "too many questions a second"}, status_code=429, headers={"Retry-After": "1"})
        return None


class _Rates:
    """A bucket of questions for each client, filled at `_RATE` a second."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        now = time.monotonic()
        left, since = self._left.pop(client, (_BURST, now))
        left = min(_BURST, left + (now - since) * _RATE) - 1
        self._left[client] = (max(left, -1.0), now)
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return left >= 0
