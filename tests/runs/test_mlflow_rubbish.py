"""A server that is none, or means harm, where runs are sent: one line, soon."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main
from trilemma.runs import mlflow

Reply = Callable[[socket.socket, str], None]
EXPERIMENT = {"experiment": {"experiment_id": "1"}}


@contextlib.contextmanager
def _server(reply: Reply) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            asked = line.recv(65536).split(b" ")
            reply(line, asked[1].decode() if len(asked) > 1 else "")

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listener.join(5)
        listening.close()


def _raw(body: bytes, head: str = "200 OK") -> Reply:
    def reply(line: socket.socket, _: str) -> None:
        line.sendall(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    return reply


def _told(**answers: Any) -> Reply:
    """JSON by what is asked for; ``get``, ``search`` and ``create`` name the calls."""

    def reply(line: socket.socket, path: str) -> None:
        calls = {"get": "get-by-name", "search": "runs/search", "create": "runs/create"}
        found = next((answers[name] for name, call in calls.items() if call in path and name in answers), {})
        _raw(json.dumps(found).encode())(line, path)

    return reply


def _forever(piece: bytes, pause_s: float = 0.0) -> Reply:
    def reply(line: socket.socket, _: str) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            line.sendall(piece)
            time.sleep(pause_s)

    return reply


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    assert main(["runs", "record", "one", "--figure", "loss=2.5", "--ledger", str(path)]) == 0
    return path


def _send(capsys: pytest.CaptureFixture[str], ledger: Path, url: str) -> str:
    capsys.readouterr()
    code = main(["runs", "export", "--to", "mlflow", "--url", url, "--ledger", str(ledger)])
    said = capsys.readouterr().err
    assert code == 2, said
    assert said.count("\n") == 1
    assert len(said) < 500
    return said


@pytest.mark.parametrize(
    "reply",
    [
        _raw(b"<html>"), _raw(b""), _raw(b"[" * 200_000), _raw(bytes(range(256))), _raw(b"[]"), _raw(b'{"experiment": "x"}'),
        _raw(b'{"experiment": [1]}'), _raw(b'{"experiment": {}}'), _raw(b'{"experiment": ' + b"9" * 10_000 + b"}"),
        _raw(b'{"message": "' + b"x" * 10**6 + b'"}', "500 no"), _raw(b"", "302 Found\r\nLocation: http://127.0.0.1:1/"),
        _raw(b'{"x": "' + b"x" * 10**7 + b'"}'), _forever(b"x" * 65536), _told(get=EXPERIMENT, search={"next_page_token": "x"}),
        _told(get=EXPERIMENT), _told(get=EXPERIMENT, create={"run": 5}), _told(get=EXPERIMENT, create={"run": {"info": [1]}}),
    ],
)  # fmt: skip
def test_answers_of_no_mlflow(capsys: pytest.CaptureFixture[str], ledger: Path, reply: Reply) -> None:
    with _server(reply) as url:
        _send(capsys, ledger, url)


@pytest.mark.parametrize("runs", [5, None, ["x"], [{"data": 5}], [{"data": {"tags": 5}}], [{"data": {"tags": [5]}}]])
def test_lists_of_runs_that_are_none_hold_none(capsys: pytest.CaptureFixture[str], ledger: Path, runs: Any) -> None:
    made = {"run": {"info": {"run_id": "1"}}}
    with _server(_told(get=EXPERIMENT, search={"runs": runs}, create=made)) as url:
        assert main(["runs", "export", "--to", "mlflow", "--url", url, "--ledger", str(ledger)]) == 0
    assert "1 run" in capsys.readouterr().out


def test_a_byte_now_and_then_keeps_nobody(
    capsys: pytest.CaptureFixture[str], ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "_LONGEST_S", 1.0)
    before = time.monotonic()
    with _server(_forever(b" ", 0.1)) as url:
        _send(capsys, ledger, url)
    assert time.monotonic() - before < 10


@pytest.mark.parametrize(
    "url", ["http://[x", "http://a b/", f"http://{'a' * 300}", "http://a\0b", "http://.:80", "http://127.0.0.1:99999", "file:///etc"]
)  # fmt: skip
def test_addresses_that_are_none(capsys: pytest.CaptureFixture[str], ledger: Path, url: str) -> None:
    assert "--url" in _send(capsys, ledger, url)


@pytest.mark.parametrize("token", ["a\nX: b", "\u2603"])
def test_tokens_that_are_none(
    capsys: pytest.CaptureFixture[str], ledger: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)
    said = _send(capsys, ledger, "http://127.0.0.1:1")
    assert "MLFLOW_TRACKING_TOKEN" in said
    assert token not in said


@pytest.mark.parametrize("which", ["²", "9" * 5000])
def test_digits_that_are_no_number_name_no_run(capsys: pytest.CaptureFixture[str], ledger: Path, which: str) -> None:
    capsys.readouterr()
    assert main(["runs", "show", which, "--ledger", str(ledger)]) == 2
    assert "no run" in capsys.readouterr().err
