"""A small OpenAI-compatible server with known delays, and the ways in which one goes wrong: ``python servers.py PORT KIND``."""

from __future__ import annotations

import asyncio
import json
import os
import sys

FIRST_S, TOKEN_S = 0.050, 0.010


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, seen: list[int]) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0
        )
        body = await reader.readexactly(length)
        if head.startswith("GET"):
            told = json.dumps({"object": "list", "data": [{"id": "known-delays", "object": "model"}]}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(told) + told
            )
            await writer.drain()
            return
        seen[0] += 1
        asked = json.loads(body)
        if kind == "strict" and "ignore_eos" in asked:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            return
        if kind == "third" and seen[0] % 3 == 0:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            return
        await stream(writer, asked, kind, late=seen[0] > 6)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def stream(writer: asyncio.StreamWriter, asked: dict[str, object], kind: str, *, late: bool) -> None:
    chat = "messages" in asked
    prompt = asked["messages"][0]["content"] if chat else asked["prompt"]  # type: ignore[index]
    tokens = int(asked["max_tokens"])  # type: ignore[call-overload]
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    await writer.drain()
    loop = asyncio.get_running_loop()
    due = loop.time() + FIRST_S
    if kind == "short":
        tokens //= 2
    for at in range(tokens):
        await asyncio.sleep(max(due - loop.time(), 0))
        due += TOKEN_S
        if late and at == 2:
            if kind == "dies":
                os._exit(3)
            if kind == "stalls":
                await asyncio.sleep(3600)
            if kind == "rubbish":
                await event(writer, b"data: {not json\n\n")
                return
            if kind == "interrupts":
                await event(writer, b"data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return
            if kind == "cuts":
                writer.transport.abort()
                return
        choice = {"delta": {"content": " word"}} if chat else {"text": " word"}
        last = {"finish_reason": "length"} if at == tokens - 1 else {"finish_reason": None}
        await event(writer, b"data: " + json.dumps({"choices": [{"index": 0, **choice, **last}]}).encode() + b"\n\n")
    usage = {"prompt_tokens": 2 * len(str(prompt).split()), "completion_tokens": tokens, "total_tokens": 0}
    await event(writer, b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
    await event(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def event(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")
    await writer.drain()


async def main(port: int, kind: str) -> None:
    seen = [0]
    server = await asyncio.start_server(lambda r, w: answer(r, w, kind, seen), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[2] == "never":
        print("out of memory, says the engine")
        sys.exit(7)
    if len(sys.argv) > 4:
        FIRST_S, TOKEN_S = float(sys.argv[3]), float(sys.argv[4])
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
