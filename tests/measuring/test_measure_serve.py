"""Servers under load: figures of one with known delays, and a clear end of those that die, stall or answer rubbish."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest
from tests.asking import document, screen

from trilemma.cli.main import main
from trilemma.measured.serving.deployment.bench_files import read_points

SERVER = Path(__file__).parent / "servers.py"
FIRST_MS, TOKEN_MS = 150.0, 20.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def served(kind: str, *words: str, code: int, requests: int = 16) -> dict[str, object]:
    port = free_port()
    load = f"--url http://127.0.0.1:{port} --isl 32 --osl 8 --requests {requests} --stall 2 --ready 30"
    behind = f"{sys.executable} {SERVER} {port} {kind} {FIRST_MS / 1e3} {TOKEN_MS / 1e3}"
    arguments = ["measure", "serve", *load.split(), *words, "--json", "--", *behind.split()]
    return _document(arguments, code)


def _document(arguments: list[str], code: int) -> dict[str, object]:
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(arguments) == code
    found: dict[str, object] = json.loads(printed.getvalue())
    return found


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_known_delays_are_measured(endpoint: str, tmp_path: Path) -> None:
    result, table, log = (tmp_path / name for name in ("r.json", "t.csv", "l.jsonl"))
    found = served(
        "good", "--concurrency", "4", "--endpoint", endpoint, "--result", str(result), "--table", str(table), "--log", str(log),
        "--gpu", "h100_sxm", "--gpus", "1", "--tp", "1", "--engine", "vllm", "--ttft", "2000", code=0,
    )  # fmt: skip
    assert (found["requests"], found["completed"], found["failed"]) == (16, 16, 0)
    assert found["model"] == "known-delays"
    assert found["osl"] == 8
    assert found["isl"] == pytest.approx(32, abs=2)
    ttft, tpot = found["ttft_ms"]["p50"], found["tpot_ms"]["p50"]  # type: ignore[index]
    assert FIRST_MS <= ttft < FIRST_MS + 150  # what a busy machine adds
    assert tpot == pytest.approx(TOKEN_MS, rel=0.35)
    assert found["goodput_per_s"] == pytest.approx(found["requests_per_s"])
    (point,) = read_points([result])
    assert (point.concurrency, point.rate, point.isl, point.osl) == (4, None, found["isl"], 8)
    assert point.ttft_ms == pytest.approx(found["ttft_ms"]["mean"], rel=1e-4)  # type: ignore[index]
    rows = table.read_text().splitlines()
    assert len(rows) == 4
    assert "h100_sxm" in rows[1]
    answer = document(f"simulate serving qwen3-0.6b --gpu h100-sxm --trace {log}")
    assert answer["requests"] == 16


def test_arrivals_at_a_rate() -> None:
    """An open loop sends when requests are due, whatever is still under way."""
    found = served("good", "--arrivals", "constant:20", code=0, requests=20)
    assert found["rate"] == 20
    assert "concurrency" not in found
    alone_s = (FIRST_MS + 7 * TOKEN_MS) / 1e3
    assert found["in_flight"] == pytest.approx(20 * alone_s, rel=0.6)
    assert found["seconds"] < 20 * alone_s  # one after the other would take this long


def test_a_server_that_knows_no_extras() -> None:
    assert served("strict", code=0)["completed"] == 16


def test_some_requests_fail() -> None:
    found = served("third", "--concurrency", "2", code=1)
    assert found["failures"] == [{"why": "status 503", "requests": found["failed"]}]
    assert found["completed"] + found["failed"] == 16  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "why", "early"),
    [
        ("dies", "cut off", "the server's process ended"), ("stalls", "stalled", "requests in a row failed"),
        ("rubbish", "no JSON", "requests in a row failed"), ("cuts", "cut off", "requests in a row failed"),
        ("interrupts", "interrupted", "requests in a row failed"),
    ],
)  # fmt: skip
def test_servers_that_go_wrong_end_in_a_clear_result(kind: str, why: str, early: str) -> None:
    started = time.monotonic()
    found = served(kind, "--concurrency", "4", code=1, requests=64)
    assert time.monotonic() - started < 120  # a hang would last an hour
    assert early in str(found["ended_early"])
    assert why in [one["why"] for one in found["failures"]]  # type: ignore[index, attr-defined]
    assert found["completed"] < found["requests"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--url http://127.0.0.1:9", "does not answer a request (refused)"),
        ("--url ftp://x", "is no address of a server"),
        ("--url http://127.0.0.1:port", "is no address of a server"),
        ("--rate 2 --concurrency 2", "both state the load"),
        ("--isl nonsense:1", "is not known"),
        (f"--url http://127.0.0.1:9 -- {sys.executable} {SERVER} 9 never", "out of memory, says the engine"),
        ("-- /no/such/program", "cannot be started"),
    ],
)
def test_what_cannot_be_measured_is_one_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "serve", "--requests", "2", *words.split()]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.splitlines()) == 1


def test_answers_that_end_early_are_told() -> None:
    port = free_port()
    shown = screen(
        f"measure serve --url http://127.0.0.1:{port} --isl 8 --osl 8 --requests 6 -- {sys.executable} {SERVER} {port} short"
    )
    assert "outputs of 4 where 8 were asked for" in shown


def test_time_is_up() -> None:
    found = served("good", "--most-seconds", "1", code=1, requests=500)
    assert found["ended_early"] == "time is up (1 s)"
    assert found["failures"][0]["why"] == "unanswered"  # type: ignore[index]


def test_the_screen_says_what_failed() -> None:
    port = free_port()
    shown = screen(
        f"measure serve --url http://127.0.0.1:{port} --isl 8 --osl 4 --requests 6 -- {sys.executable} {SERVER} {port} third",
        code=1,
    )
    assert "status 503" in shown
    assert "time to first token" in shown
