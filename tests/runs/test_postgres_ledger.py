"""The ledger in a real PostgreSQL server: the same promises as of the file."""

from __future__ import annotations

import getpass
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.runs.databases import without_password
from trilemma.runs.run import LedgerRun, RunEvent
from trilemma.runs.store import RunLedger, ledger_path

pytest.importorskip("psycopg", reason="psycopg is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server of its own: TRILEMMA_TEST_POSTGRES, else one that is started here from Debian's package."""
    if stated := os.environ.get("TRILEMMA_TEST_POSTGRES"):
        yield stated
        return
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    tool = found[-1] if found else (Path(path) if (path := shutil.which("initdb")) else None)
    if tool is None:
        pytest.skip("no PostgreSQL server is installed (Debian: postgresql)")
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    folder = Path("/tmp") / f"trilemma-pg-{os.getpid()}"
    folder.mkdir(mode=0o700)
    as_user: dict[str, str] = {}
    if os.geteuid() == 0:
        try:
            shutil.chown(folder, user)
        except LookupError:
            pytest.skip("a server does not run as root, and there is no user postgres")
        as_user = {"user": user}
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/tmp"}
    data = folder / "data"
    subprocess.run([tool, "-D", data, "-A", "trust", "-U", "tester"], check=True, **quiet, **as_user)  # type: ignore[call-overload]
    run = [str(tool.with_name("postgres")), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder)]
    process = subprocess.Popen(run, **quiet, **as_user)  # type: ignore[call-overload]
    url = f"postgresql://tester@127.0.0.1:{port}/postgres"
    try:
        for _ in range(200):
            try:
                RunLedger(url).close()
                break
            except InputError:
                time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _run(name: str, value: float) -> LedgerRun:
    return LedgerRun(
        name=name, started_s=1.7e9, ended_s=1.7e9 + 1 / 3, figures={"step_s": value}, model="m", config={"lr": 1e-4, "x": "a\0b"},
        tags=("a",),
    )  # fmt: skip


def test_what_is_written_is_read(server: str) -> None:
    with RunLedger(server) as ledger:
        found = ledger.add(_run("whole", 0.1 + 0.2))
        ledger.add_points(found, [("step_s", 3.0, 0.3), ("step_s", 1.0, 0.1), ("loss", 2.0, 5.0)])
        ledger.add_event(found, RunEvent(at_s=5.0, what="checkpoint"))
    with RunLedger(server) as ledger:
        told = ledger.run("whole")
        assert told == ledger.run(found)
        assert told.figures == {"step_s": 0.1 + 0.2}
        assert told.ended_s == 1.7e9 + 1 / 3  # eight bytes: four would lose the second
        assert ledger.points(found, "step_s") == ([1.0, 3.0], [0.1, 0.3])
        assert sorted(ledger.series(found)) == ["loss", "step_s"]
        assert ledger.events(found) == [RunEvent(at_s=5.0, what="checkpoint")]
        assert [one.id for one in ledger.runs(name="whole", tag="a")] == [found]


def test_recorder_and_commands_take_the_url(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    with tl.record("by-url", ledger=server) as run:
        run.log(step_s=0.5)
    assert main(["runs", "list", "--ledger", server]) == 0
    assert "by-url" in capsys.readouterr().out
    assert main(["runs", "record", "x", "--figure", "step_s=0.4", "--ledger", server]) == 0
    assert main(["runs", "gate", "x", "--baseline", "by-url", "--figure", "step_s", "--ledger", server]) == 0


def _write(url: str, number: int, said: str, many: int) -> None:
    with RunLedger(url) as ledger, open(said, "a", buffering=1) as out:
        for at in range(many):
            found = ledger.add(_run(f"w{number}", float(at)))
            out.write(f"{found} {number} {at}\n")


def test_nothing_acknowledged_is_lost_when_writers_are_killed(server: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(server, at, str(tmp_path / f"said{at}"), 2000)) for at in range(4)]
    for one in writers:
        one.start()
    ends = time.monotonic() + 60
    while sum(one.stat().st_size for one in tmp_path.glob("said*")) < 4000 and time.monotonic() < ends:
        time.sleep(0.05)
    for one in writers:
        os.kill(one.pid or 0, signal.SIGKILL)
        one.join()
    said = [
        line.split() for file in tmp_path.glob("said*") for line in file.read_text().splitlines() if line.count(" ") == 2
    ]  # fmt: skip
    assert len(said) > 50
    with RunLedger(server) as ledger:
        kept = {one.id: one for one in ledger.runs(most=100_000)}
    for found, number, at in said:
        assert (kept[int(found)].name, kept[int(found)].figures["step_s"]) == (f"w{number}", float(at))


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://me:secret@127.0.0.1:9/none"
    assert main(["runs", "list", "--ledger", url]) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "cannot be opened" in told
    assert "refused" in told
    assert "name a file with --ledger" in told
    assert "secret" not in told


def test_names_of_the_place() -> None:
    assert ledger_path("postgresql://h/d") == "postgresql://h/d"
    assert ledger_path("file.db") == Path("file.db")
    assert without_password("postgres://u:p@h:5/d?password=x") == "postgres://u@h:5/d"
