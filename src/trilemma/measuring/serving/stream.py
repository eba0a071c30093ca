"""One request to an OpenAI-compatible server over HTTP/1.1, answered as a stream of events: every piece with its time.

Whatever a server does ends here as a word: refused, status, stalled, cut off, no events, no JSON. Reads are bounded.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from trilemma.errors import InputError, shorten

_MOST_LINE, _MOST_HEADERS = 2**20, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where requests go: ``base`` is the path before ``/v1``; ``chat`` asks for messages in place of a prompt."""

    host: str
    port: int
    base: str
    secure: bool
    chat: bool
    model: str
    key: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, *, chat: bool, model: str = "", key: str = "") -> Endpoint:
        """Raises `InputError` for what is no http URL."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or (":" in parts.netloc.rpartition("]")[2] and not port)
        ):
            raise InputError(f"--url {shorten(url)} is no address of a server; give http://host:8000")
        secure = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(
            host=parts.hostname,
            port=port or (443 if secure else 80),
            base=base,
            secure=secure,
            chat=chat,
            model=model,
            key=key,
        )

    @property
    def path(self) -> str:
        return f"{self.base}/v1/{'chat/completions' if self.chat else 'completions'}"

    def body(self, prompt: str, most_tokens: int, *, plain: bool) -> bytes:
        """``plain`` leaves out what servers beside those of engines may not know."""
        asked: dict[str, Any] = {"model": self.model, "max_tokens": most_tokens, "stream": True, "temperature": 0.0}
        asked |= {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        if not plain:
            asked |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        return json.dumps(asked).encode()


@dataclass(kw_only=True, slots=True)
class Answered:
    """One request: seconds of the clock when it was due, sent, and each piece of text came; tokens as the server counts them.

    ``failure`` is empty where the answer came whole.
    """

    due_s: float
    asked_input: int
    asked_output: int
    sent_s: float = 0.0
    pieces_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    failure: str = ""

    @property
    def tokens(self) -> int:
        """Tokens that came: as counted by the server, else one a piece."""
        return self.output_tokens or len(self.pieces_s)

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None for a single token."""
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.tokens - 1) if self.tokens > 1 else None


async def ask(endpoint: Endpoint, answered: Answered, prompt: str, *, stall_s: float, plain: bool) -> None:
    """Send one request and fill in ``answered``; a server that says nothing for ``stall_s`` is given up."""
    writer: Any = None
    answered.sent_s = time.perf_counter()
    try:
        reader, writer = await asyncio.wait_for(_open(endpoint), stall_s)
        body = endpoint.body(prompt, answered.asked_output, plain=plain)
        writer.write(_head("POST", endpoint, endpoint.path, len(body)) + body)
        await asyncio.wait_for(writer.drain(), stall_s)
        status, headers = await _response(reader, stall_s)
        if status != 200:
            answered.failure = f"status {status}"
            return
        await _events(_lines(reader, headers, stall_s), answered)
    except TimeoutError:
        answered.failure = "stalled"
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        answered.failure = "refused" if isinstance(error, ConnectionRefusedError) else "cut off"
    except ValueError:
        answered.failure = "no HTTP"
    except asyncio.CancelledError:
        answered.failure = answered.failure or "unanswered"
        raise
    finally:
        answered.end_s = time.perf_counter()
        if writer is not None:
            writer.close()


async def _events(lines: AsyncIterator[bytes], answered: Answered) -> None:
    ended = whole = False
    async for line in lines:
        now = time.perf_counter()
        text = line.strip()
        if not text or text.startswith((b":", b"event:", b"id:", b"retry:")):
            continue
        if not text.startswith(b"data:"):
            answered.failure = "no events"
            return
        data = text[5:].strip()
        if data == b"[DONE]":
            ended = True
            break
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            answered.failure = "no JSON"
            return
        if not isinstance(event, Mapping) or "error" in event:
            answered.failure = "error told" if isinstance(event, Mapping) else "no JSON"
            return
        whole = _told(event, answered, now) or whole
    if not (ended or whole):
        answered.failure = "cut off"
    elif not answered.pieces_s:
        answered.failure = "no text"
    elif not whole and answered.tokens < answered.asked_output:
        answered.failure = "interrupted"  # the stream ends as if nothing were, and no reason for its end was told


def _told(event: Mapping[str, Any], answered: Answered, now: float) -> bool:
    """Take what an event says; whether it is the last of the text."""
    usage = event.get("usage")
    if isinstance(usage, Mapping):
        answered.input_tokens = _count(usage.get("prompt_tokens"), answered.input_tokens)
        answered.output_tokens = _count(usage.get("completion_tokens"), answered.output_tokens)
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    delta = first.get("delta")
    said: Any = first.get("text")
    if isinstance(delta, Mapping):
        said = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    if said:
        answered.pieces_s.append(now)
    return bool(first.get("finish_reason"))


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else before


async def get_json(endpoint: Endpoint, path: str, *, stall_s: float) -> Any:
    """What a GET of ``path`` says, None where the server does not answer with JSON."""
    writer: Any = None
    try:
        reader, writer = await asyncio.wait_for(_open(endpoint), stall_s)
        writer.write(_head("GET", endpoint, path, 0))
        status, headers = await _response(reader, stall_s)
        lines = [line async for line in _lines(reader, headers, stall_s)]
        return json.loads(b"".join(lines)) if status == 200 else None
    except (TimeoutError, OSError, ValueError, RecursionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    finally:
        if writer is not None:
            writer.close()


async def _open(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    secure = ssl.create_default_context() if endpoint.secure else None
    return await asyncio.open_connection(endpoint.host, endpoint.port, ssl=secure, limit=_MOST_LINE)


def _head(verb: str, endpoint: Endpoint, path: str, length: int) -> bytes:
    lines = [
        f"{verb} {path} HTTP/1.1", f"Host: {endpoint.host}:{endpoint.port}", "Connection: close",
        "Accept: text/event-stream, application/json", "Content-Type: application/json", f"Content-Length: {length}",
        *([f"Authorization: Bearer {endpoint.key}"] if endpoint.key else []),
    ]  # fmt: skip
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _response(reader: asyncio.StreamReader, stall_s: float) -> tuple[int, dict[str, str]]:
    """(status, headers). Raises `ValueError` for what is no HTTP."""
    first = (await asyncio.wait_for(reader.readline(), stall_s)).split()
    if not first:
        raise ConnectionResetError
    if len(first) < 2 or not first[0].startswith(b"HTTP/") or not first[1].isdigit() or len(first[1]) > 3:
        raise ValueError("no HTTP")
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = await asyncio.wait_for(reader.readline(), stall_s)
        if line in (b"\r\n", b"\n", b""):
            return int(first[1]), headers
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip().lower()
    raise ValueError("no end of headers")


async def _lines(reader: asyncio.StreamReader, headers: Mapping[str, str], stall_s: float) -> AsyncIterator[bytes]:
    """Lines of the body, whatever pieces it comes in. Raises `TimeoutError` where nothing comes for ``stall_s``."""
    left = b""
    async for piece in _pieces(reader, headers, stall_s):
        left += piece
        *whole, left = left.split(b"\n")
        for line in whole:
            yield line
        if len(left) > _MOST_LINE:
            raise ValueError("a line without end")
    if left:
        yield left


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str], stall_s: float) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "") == "chunked":
        while True:
            head = await asyncio.wait_for(reader.readline(), stall_s)
            if not head:
                raise ConnectionResetError
            size = int(head.split(b";")[0], 16)
            if not 0 <= size <= _MOST_LINE:
                raise ValueError("a chunk without bound")
            if size == 0:
                return
            yield await asyncio.wait_for(reader.readexactly(size), stall_s)
            await asyncio.wait_for(reader.readline(), stall_s)
    length = headers.get("content-length", "")
    left = int(length) if length.isdigit() and len(length) < 16 else None
    while left is None or left > 0:
        piece = await asyncio.wait_for(reader.read(min(left or 2**16, 2**16)), stall_s)
        if not piece:
            if left is not None:
                raise ConnectionResetError
            return
        left = None if left is None else left - len(piece)
        yield piece
