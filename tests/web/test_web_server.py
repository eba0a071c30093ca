"""The server as a process: it starts where it is told, and clients that drip bytes hold no place."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from trilemma.cli.main import main

pytestmark = pytest.mark.slow


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    chosen = _free_port()
    words = [sys.executable, "-m", "trilemma", "web", "--port", str(chosen)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if process.poll() is not None:
                pytest.fail("the server ended")
            try:
                socket.create_connection(("127.0.0.1", chosen), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield chosen
    finally:
        process.terminate()
        process.wait(timeout=30)


def _status(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/catalogue", timeout=60) as told:
        return int(told.status)


def test_it_answers(port: int) -> None:
    assert _status(port) == 200


def test_clients_that_drip_bytes_are_let_go(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(200)]
    try:
        for one in slow:
            one.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert _status(port) == 200
        ended = 0
        for one in slow:
            one.settimeout(60)
            try:
                ended += one.recv(1000) == b""
            except ConnectionError:
                ended += 1
        assert ended == len(slow)
        assert _status(port) == 200
    finally:
        for one in slow:
            one.close()


def test_a_large_body_ends_early(port: int) -> None:
    """The server answers or hangs up long before the 10 MB are through."""
    head = f"POST /api/check HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 10000000\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(head + b"x" * 100_000)
        assert b"422" in one.recv(1000).partition(b"\r\n")[0]
    assert _status(port) == 200


@pytest.mark.parametrize("words", [["--port", "0"], ["--port", "70000"], ["--port", "x"]])
def test_a_wrong_port_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", *words]) == 2
    assert "--port" in capsys.readouterr().err
