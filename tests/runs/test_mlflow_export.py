"""Runs into an MLflow server: one that keeps its rules (bounds of a batch, names, settings that do not change) is played here."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.asking import screen

import trilemma as tl
from trilemma.cli.main import main

NAME = re.compile(r"[\w\-. /]{1,250}", re.ASCII)


class Mlflow(BaseHTTPRequestHandler):
    """What mlflow/server/handlers.py and mlflow/utils/validation.py do with the calls that are made."""

    kept: dict[str, Any]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        name = urllib.parse.parse_qs(query).get("experiment_name", [""])[0]
        assert path == "/api/2.0/mlflow/experiments/get-by-name"
        if name == "refused":
            return self._told(403, {"error_code": "PERMISSION_DENIED", "message": "not yours"})
        if name == "page":
            return self._raw(200, b"<html>a login page</html>")
        if name not in self.kept["experiments"]:
            return self._told(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "No Experiment"})
        return self._told(200, {"experiment": {"experiment_id": "7", "lifecycle_stage": "active", "name": name}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.kept["tokens"].add(self.headers.get("Authorization"))
        what = self.path.removeprefix("/api/2.0/mlflow/")
        runs = self.kept["runs"]
        if what == "experiments/create":
            self.kept["experiments"].append(body["name"])
            return self._told(200, {"experiment_id": "7"})
        if what == "runs/search":
            at = int(body.get("page_token", 0))  # a run a page
            told: dict[str, Any] = {"runs": [{"data": {"tags": runs[at]["tags"]}}]} if at < len(runs) else {}
            return self._told(200, told | ({"next_page_token": str(at + 1)} if at + 1 < len(runs) else {}))
        if what == "runs/create":
            assert body["experiment_id"] == "7"
            runs.append(body | {"params": {}, "metrics": []})
            return self._told(200, {"run": {"info": {"run_id": str(len(runs) - 1)}}})
        run = runs[int(body["run_id"])]
        if what == "runs/update":
            run |= body
            return self._told(200, {})
        assert what == "runs/log-batch"
        params, metrics = body.get("params", []), body.get("metrics", [])
        if len(params) > 100 or len(metrics) > 1000 or not all(NAME.fullmatch(one["key"]) for one in params + metrics):
            return self._told(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "bounds of a batch"})
        for one in params:
            if run["params"].setdefault(one["key"], one["value"]) != one["value"] or len(one["value"]) > 6000:
                return self._told(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "changed"})
        run["metrics"] += metrics
        return self._told(200, {})

    def _told(self, status: int, body: dict[str, Any]) -> None:
        self._raw(status, json.dumps(body).encode())

    def _raw(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    kept: dict[str, Any] = {"experiments": [], "runs": [], "tokens": set()}
    handler = type("Kept", (Mlflow,), {"kept": kept})
    made = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}", kept
    made.shutdown()
    made.server_close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path, times = tmp_path / "runs.db", iter(range(1_700_000_000, 1_800_000_000))
    config = {"lr": 1e-4, "optimizer": {"name": "adamw", "betas(β)": [0.9, 0.95]}, "long": "x" * 9000}
    config |= {f"key{at}": at for at in range(150)}
    with tl.record(
        "sft (1)", ledger=path, model="llama-3.1-8b", gpus=8, config=config, clock=lambda: float(next(times))
    ) as run:
        for at in range(1200):
            run.log(step_s=0.3 + at / 1e5, loss=3 - at / 1200)
        run.event("checkpoint")
    with contextlib.suppress(RuntimeError), tl.record("bad", ledger=path) as run:
        run.log(step_s=1.0)
        raise RuntimeError("out of memory")
    return path


def test_settings_points_figures_and_ends_arrive(server, ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    url, kept = server
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    told = screen(f"runs export --to mlflow --url {url} --experiment nightly --ledger {ledger}")
    assert told == "2 runs sent to experiment nightly\n"
    assert kept["experiments"] == ["nightly"]
    assert kept["tokens"] == {"Bearer secret"}
    good, bad = kept["runs"]
    assert (good["run_name"], good["status"], bad["status"]) == ("sft (1)", "FINISHED", "FAILED")
    assert good["params"]["optimizer.name"] == "adamw"
    assert good["params"]["optimizer.betas___"] == "[0.9, 0.95]"
    assert (good["params"]["gpus"], good["params"]["key149"], len(good["params"]["long"])) == ("8", "149", 6000)
    steps = [one for one in good["metrics"] if one["key"] == "step_s"]
    assert [one["step"] for one in steps] == list(range(1200))
    assert [one["value"] for one in steps[:2]] == [0.3, 0.3 + 1e-5]
    assert steps[0]["timestamp"] == good["start_time"] + 1000  # the clock of this run goes a second a look
    whole = {one["key"]: one["value"] for one in good["metrics"] if one["key"].endswith("_of_run")}
    assert whole["step_s_of_run"] == pytest.approx(0.3 + 599.5 / 1e5)
    assert good["end_time"] == 1000 * (1_700_000_000 + 1 + 1200 + 1)
    tags = {one["key"]: one["value"] for one in good["tags"]}
    assert tags["event.0"].endswith(" checkpoint")
    assert tags["trilemma.run"] == f"{ledger.resolve()}#1"
    assert {one["key"]: one["value"] for one in bad["tags"]}["why"] == "RuntimeError: out of memory"


def test_no_run_is_sent_twice(server, ledger) -> None:
    url, kept = server
    send = f"runs export --to mlflow --url {url} --ledger {ledger}"
    screen(send)
    assert screen(send) == "0 runs sent to experiment trilemma, 2 were there\n"
    with tl.record("third", ledger=ledger):
        pass
    assert screen(send) == "1 run sent to experiment trilemma, 2 were there\n"
    assert [one["run_name"] for one in kept["runs"]] == ["sft (1)", "bad", "third"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--url {url} --experiment refused", "refuses experiments/get-by-name: not yours"),
        ("--url {url} --experiment page", "is no MLflow server"),
        ("--url http://127.0.0.1:9", "does not answer"),
        ("--url ftp://box", "is no server; give http://HOST:5000"),
        ("--url http://box:port", "names no port"),
        ("", "--url URL is for --to mlflow"),
    ],
)
def test_what_does_not_work_is_one_line(
    server, ledger, words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = f"runs export --to mlflow --ledger {ledger} {words.format(url=server[0])}"
    assert main(asked.split()) == 2
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1
