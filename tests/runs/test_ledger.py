"""The ledger keeps what it acknowledged, whoever else writes and whatever dies."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.runs.better import better_of, gain
from trilemma.runs.comparing import best, difference, gate
from trilemma.runs.importing import imported
from trilemma.runs.run import LedgerRun, RunEvent
from trilemma.runs.store import RunLedger, ledger_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "runs.db"


def _run(**more: Any) -> LedgerRun:
    told: dict[str, Any] = {
        "name": "one",
        "started_s": 1000.0,
        "ended_s": 1100.0,
        "figures": {"step_s": 0.5},
        "model": "m",
        **more,
    }
    return LedgerRun(**told)


def test_what_is_written_is_read(path: Path) -> None:
    whole = _run(
        gpu="h100-sxm", gpus=8, tags=("a", "b"), git="abc+", config={"lr": 1e-4, "deep": {"x": [1, 2]}}, machine={"host": "h"},
        estimate={"speed": {"step_s": {"value": 0.4}}}, why="", status="done",
    )  # fmt: skip
    with RunLedger(path) as ledger:
        found = ledger.add(whole)
        ledger.add_points(found, [("step_s", 3.0, 0.3), ("step_s", 1.0, 0.1), ("loss", 2.0, 5.0)])
        ledger.add_event(found, RunEvent(at_s=5.0, what="checkpoint"))
    with RunLedger(path, must_exist=True) as ledger:
        assert ledger.run("one") == ledger.run(found) == ledger.runs()[0]
        told = ledger.run(found)
        assert told.id == found
        assert {
            name: getattr(told, name) for name in ("gpu", "gpus", "tags", "git", "config", "machine", "estimate")
        } == {name: getattr(whole, name) for name in ("gpu", "gpus", "tags", "git", "config", "machine", "estimate")}
        assert told.seconds == 100.0
        assert ledger.points(found, "step_s") == ([1.0, 3.0], [0.1, 0.3])
        assert sorted(ledger.series(found)) == ["loss", "step_s"]
        assert ledger.events(found) == [RunEvent(at_s=5.0, what="checkpoint")]


def test_runs_are_found_by_name_model_and_tag(path: Path) -> None:
    with RunLedger(path) as ledger:
        for at in range(5):
            ledger.add(_run(name=f"n{at % 2}", model=f"m{at}", tags=("odd",) if at % 2 else ()))
        assert [one.id for one in ledger.runs()] == [5, 4, 3, 2, 1]
        assert [one.id for one in ledger.runs(name="n1")] == [4, 2]
        assert [one.id for one in ledger.runs(model="m2")] == [3]
        assert [one.id for one in ledger.runs(tag="odd", most=1)] == [4]
        assert ledger.run("n1").id == 4


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"name": ""}, "name"), ({"name": "a\nb"}, "name"), ({"model": "x" * 300}, "model"), ({"status": "odd"}, "status"),
        ({"figures": {"a b": 1.0}}, "figure"), ({"figures": {"x": float("nan")}}, "finite"), ({"figures": {"x": True}}, "finite"),
        ({"figures": {f"f{at}": 1.0 for at in range(1001)}}, "1,001"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_refused(bad: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        _run(**bad)


def test_a_configuration_that_is_no_data_is_refused(path: Path) -> None:
    with RunLedger(path) as ledger:
        with pytest.raises(InputError, match="config"):
            ledger.add(_run(config={"x": float("inf")}))
        with pytest.raises(InputError, match="bytes"):
            ledger.add(_run(config={"x": "y" * (5 << 20)}))
        assert ledger.runs() == []


def test_a_run_is_recorded_as_it_goes(path: Path) -> None:
    times = iter(range(100, 200))
    with tl.record("go", ledger=path, config={"lr": 1}, clock=lambda: float(next(times))) as run:
        for at in range(5):
            run.log(step_s=1.0 + at, loss=5.0 - at, peak_memory_bytes=10.0 * at)
        run.event("checkpoint")
        run.figure(mfu=0.4)
    with RunLedger(path) as ledger:
        kept = ledger.run("go")
        assert kept.status == "done"
        assert kept.figures == {"step_s": 3.0, "loss": 1.0, "peak_memory_bytes": 40.0, "mfu": 0.4}
        assert kept.config == {"lr": 1}
        assert kept.machine["processors"] == os.cpu_count()
        assert ledger.points(kept.id, "loss")[1] == [5.0, 4.0, 3.0, 2.0, 1.0]
        assert [one.what for one in ledger.events(kept.id)] == ["checkpoint"]


def test_a_crash_is_recorded_as_one(path: Path) -> None:
    def crash() -> None:
        with tl.record("bad", ledger=path) as run:
            run.log(step_s=1.0)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        crash()
    with RunLedger(path) as ledger:
        kept = ledger.run("bad")
        assert (kept.status, kept.figures) == ("crashed", {"step_s": 1.0})
        assert kept.why.startswith("ZeroDivisionError")


def test_an_estimate_stands_beside_its_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = tl.fit("llama-3.1-8b", "h100-sxm", isl=512, osl=64, concurrency=4)
    with tl.record("served", ledger=path, estimate=expected) as run:
        run.figure(tpot_ms=7.0)
    assert main(["runs", "show", "served", "--ledger", str(path)]) == 0
    told = capsys.readouterr().out
    assert "expected" in told
    assert "tpot_ms  7" in told


def test_logging_costs_little(path: Path) -> None:
    """A step of 50 ms may lose 1 %: 0.5 ms."""
    with tl.record("quick", ledger=path) as run:
        began = time.process_time()
        for _ in range(2000):
            run.log(step_s=0.05, loss=2.0)
        assert (time.process_time() - began) / 2000 < 0.5e-3


def _write(path: str, number: int, said: str) -> None:
    with RunLedger(path) as ledger, open(said, "a", buffering=1) as out:
        for at in range(1000):
            found = ledger.add(_run(name=f"w{number}", figures={"step_s": float(at)}))
            out.write(f"{found} {number} {at}\n")


def test_nothing_acknowledged_is_lost_when_writers_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    RunLedger(path).close()
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(path), at, str(tmp_path / f"said{at}"))) for at in range(4)]
    for one in writers:
        one.start()
    ends = time.monotonic() + 60
    while sum(one.stat().st_size for one in tmp_path.glob("said*")) < 4000 and time.monotonic() < ends:
        time.sleep(0.05)
    for one in writers:
        os.kill(one.pid or 0, signal.SIGKILL)
        one.join()
    said = [
        line.split()
        for file in tmp_path.glob("said*")
        for line in file.read_text().splitlines()
        if line.count(" ") == 2
    ]
    assert len(said) > 100
    with RunLedger(path) as ledger:
        kept = {one.id: one for one in ledger.runs(most=100_000)}
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for found, number, at in said:
        assert (kept[int(found)].name, kept[int(found)].figures["step_s"]) == (f"w{number}", float(at))


def test_what_is_no_ledger_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"not a database at all" * 100)
    for words in (
        ["list", "--ledger", str(junk)],
        ["list", "--ledger", str(tmp_path / "none.db")],
        ["list", "--ledger", str(tmp_path)],
    ):
        assert main(["runs", *words]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert "ledger" in told


def test_a_later_ledger_is_refused(path: Path) -> None:
    RunLedger(path).close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version=99")
    with pytest.raises(InputError, match="later"):
        RunLedger(path)


def test_a_full_disk_loses_nothing(path: Path) -> None:
    with RunLedger(path) as ledger:
        first = ledger.add(_run())
        (pages,) = ledger._database.execute("PRAGMA page_count").fetchone()
        ledger._database.execute(f"PRAGMA max_page_count={pages + 1}")

        def fill() -> None:
            for _ in range(1000):
                ledger.add(_run(config={"x": "y" * 10_000}))

        with pytest.raises(InputError, match="full"):
            fill()
        assert ledger.run(first).figures == {"step_s": 0.5}


def test_rows_of_somebody_else_are_refused(path: Path) -> None:
    with RunLedger(path) as ledger:
        found = ledger.add(_run())
        ledger._database.execute("UPDATE runs SET figures = '[1'")
        with pytest.raises(InputError, match="broken"):
            ledger.run(found)


def test_the_place_is_said_by_option_variable_or_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.delenv("TRILEMMA_LEDGER", raising=False)
    assert ledger_path() == Path("/data/trilemma/runs.db")
    monkeypatch.setenv("TRILEMMA_LEDGER", "/x.db")
    assert ledger_path() == Path("/x.db")
    assert ledger_path("/y.db") == Path("/y.db")


@pytest.mark.parametrize(
    ("figure", "way"),
    [("tokens_per_s_per_gpu", "higher"), ("mfu", "higher"), ("requests_per_s", "higher"), ("step_s", "lower"),
     ("tpot_ms", "lower"), ("loss", "lower"), ("peak_memory_bytes", "lower"), ("usd_per_hour", "lower")],
)  # fmt: skip
def test_names_say_which_way_is_better(figure: str, way: str) -> None:
    assert better_of(figure) == way
    assert better_of(figure, "higher") == "higher"


def test_a_name_that_says_nothing_asks() -> None:
    with pytest.raises(InputError, match="higher or lower"):
        better_of("beauty")
    assert gain(2.0, 1.0, "lower") == 0.5
    assert gain(2.0, 1.0, "higher") == -0.5
    assert gain(0.0, 0.0, "lower") == 0.0
    assert gain(0.0, 1.0, "higher") == float("inf")
    assert gain(0.0, 1.0, "lower") == float("-inf")


def test_a_difference_names_settings_and_what_they_did(path: Path) -> None:
    with RunLedger(path) as ledger:
        ids = []
        for mbs, step in ((1, 0.50), (2, 0.40)):
            ids.append(
                ledger.add(
                    _run(
                        config={"mbs": mbs, "deep": {"a": 1}},
                        figures={"step_s": step, "only": 1.0} if mbs == 1 else {"step_s": step},
                    )
                )
            )
            ledger.add_points(ids[-1], [("step_s", float(at), step * (1 + 0.02 * (-1) ** at)) for at in range(40)])
        found = difference(ledger, ledger.run(ids[0]), ledger.run(ids[1]))
    assert [(one.key, one.before, one.after) for one in found.config] == [("mbs", 1, 2)]
    (change,) = found.figures
    assert change.change == pytest.approx(-0.2)
    assert change.sure is True


def test_noise_is_no_difference(path: Path) -> None:
    import numpy as np

    random = np.random.default_rng(7)
    called = 0
    with RunLedger(path) as ledger:
        for _ in range(100):
            ids = [ledger.add(_run()) for _ in range(2)]
            for one in ids:
                ledger.add_points(
                    one,
                    [
                        ("step_s", float(at), float(value))
                        for at, value in enumerate(1 + 0.03 * random.standard_normal(60))
                    ],
                )
            (change,) = difference(ledger, ledger.run(ids[0]), ledger.run(ids[1])).figures
            called += bool(change.sure)
    assert called <= 4  # 1 of 100 expected


def test_the_best_stands_first() -> None:
    runs = [
        _run(id=at, figures={"mfu": value}, status=status)
        for at, value, status in ((1, 0.3, "done"), (2, 0.5, "done"), (3, 0.9, "crashed"))
    ]
    assert [one.id for one in best(runs, "mfu")] == [2, 1]
    assert [one.id for one in best(runs, "mfu", better="lower")] == [1, 2]


def test_a_gate() -> None:
    base, new = _run(id=1, figures={"step_s": 1.0}), _run(id=2, figures={"step_s": 1.03})
    assert not gate(new, base, "step_s", tolerance=0.02).passed
    assert gate(new, base, "step_s", tolerance=0.04).passed
    assert gate(base, new, "step_s", tolerance=0.0).passed
    with pytest.raises(InputError, match="tolerance"):
        gate(new, base, "step_s", tolerance=2)
    with pytest.raises(InputError, match="no figure"):
        gate(new, base, "mfu", tolerance=0.1)


def test_from_the_command_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*words: str) -> tuple[int, str]:
        code = main(["runs", *words, "--ledger", str(path)])
        return code, capsys.readouterr().out

    for name, step in (("a", "0.50"), ("b", "0.60")):
        code, told = ask(
            "record",
            name,
            "--figure",
            f"step_s={step}",
            "--set",
            "mbs=2",
            "--model",
            "llama-3.1-8b",
            "--gpu",
            "h100-sxm",
            "--gpus",
            "8",
            "--json",
        )
        assert code == 0
        assert json.loads(told)["ledger"] == str(path)
    code, told = ask("list")
    assert code == 0
    assert "8 x h100-sxm" in told
    assert ask("gate", "b", "--baseline", "a", "--figure", "step_s")[0] == 1
    assert ask("gate", "b", "--baseline", "a", "--figure", "step_s", "--tolerance", "0.3")[0] == 0
    code, told = ask("best", "--figure", "step_s", "--json")
    assert [one["name"] for one in json.loads(told)["runs"]] == ["a", "b"]
    assert "+20.0 %" in ask("diff", "a", "b")[1]
    assert json.loads(ask("diff", "a", "b", "--json")[1])["figures"][0]["change"] == pytest.approx(0.2)
    assert "step_s" in ask("show", "a")[1]
    code, told = ask("export", "--to", "csv")
    assert told.splitlines()[0].endswith("tags,step_s")
    assert (
        'trilemma_run_step_s{name="b",model="llama-3.1-8b",gpu="h100-sxm"} 0.6'
        in ask("export", "--to", "openmetrics")[1]
    )
    assert len(json.loads(ask("export", "--to", "json")[1])["runs"]) == 2


def test_a_spreadsheet_runs_no_cell(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLedger(path) as ledger:
        ledger.add(_run(name="=cmd|calc"))
    assert main(["runs", "export", "--ledger", str(path)]) == 0
    assert "'=cmd|calc" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["record", "x", "--figure", "step_s"], ["record", "x", "--figure", "step_s=fast"], ["record", "", "--figure", "a=1"],
     ["record", "x", "--config", "/nowhere.json"], ["show", "99"], ["diff", "x", "y"], ["trend", "1"], ["nonsense"]],
)  # fmt: skip
def test_bad_words_are_refused_in_a_line(path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with RunLedger(path) as ledger:
        ledger.add(_run())
    assert main(["runs", *words, *([] if words == ["nonsense"] else ["--ledger", str(path)])]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_trainers_log_is_imported(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(
        f"[2025-01-01 00:00:{at:02d}] iteration {at:8d}/ 100 | elapsed time per iteration (ms): {500 + at % 3}.0 |"
        f" throughput per GPU (TFLOP/s/GPU): 400.5 | lm loss: {3 - at / 100:.4f}E+00 |\n" for at in range(1, 60)
    ))  # fmt: skip
    run = imported(str(log))
    assert run.name == "train"
    assert any(500 <= value <= 502 for name, value in run.figures.items() if "ms" in name)
    assert main(["runs", "import", str(log), "--ledger", str(path)]) == 0
    assert "run 1 train" in capsys.readouterr().out
    (tmp_path / "x.txt").write_text("nothing here\n")
    with pytest.raises(InputError, match="no figures"):
        imported(str(tmp_path / "x.txt"))


@pytest.mark.parametrize(
    ("name", "told"),
    [("mysql://me:secret@host/runs", "mysql://me@host/runs"), ("junk.db", "name another file with --ledger")],
)
def test_what_is_no_ledger_is_told_what_would_be(
    name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk.db").write_bytes(b"not a database at all" * 100)
    assert main(["runs", "list", "--ledger", name]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "secret" not in said
    assert "free the disk" not in said
