"""Runs of the ledger into an MLflow server, by its REST interface (mlflow.org/docs/latest/rest-api.html)."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.runs.comparing import flat
from trilemma.runs.run import LedgerRun
from trilemma.runs.store import RunLedger

#: Bounds of one ``runs/log-batch`` (mlflow/utils/validation.py), of what an answer may hold, and of patience.
_METRICS, _PARAMS, _KEY, _PARAM, _TAG = 1000, 100, 250, 6000, 5000
_MOST_ANSWER, _PATIENCE_S, _LONGEST_S, _MOST_PAGES = 8 << 20, 30.0, 60.0, 1000
#: Hosts as names and addresses are written (labels of at most 63), and what a header carries.
_HOST = re.compile(r"(?!.*[^.:]{64})[^\s\x00-\x20\x7f.][^\s\x00-\x20\x7f]{0,252}")
_TOKEN = re.compile(r"[\x21-\x7e]*")
#: Under this tag the server keeps which run of the ledger one is, so that none is sent twice.
_OURS = "trilemma.run"
_STATUS = {"done": "FINISHED", "crashed": "FAILED", "running": "RUNNING"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MlflowServer:
    """Where an MLflow server answers; ``token`` is sent as a bearer where one is known."""

    url: str
    token: str = ""

    def __post_init__(self) -> None:
        try:
            told = urllib.parse.urlsplit(self.url)
            known = told.scheme in ("http", "https") and _HOST.fullmatch(told.hostname or "")
        except ValueError:
            known = None
        if not known:
            raise InputError(f"--url {shorten(self.url)!r} is no server; give http://HOST:5000")
        if not _TOKEN.fullmatch(self.token):
            raise InputError(
                "MLFLOW_TRACKING_TOKEN holds what no header may; give the token alone, without line breaks"
            )

    def ask(self, what: str, body: Mapping[str, Any] | None = None, *, query: str = "") -> dict[str, Any]:
        """The answer to one call. Raises `InputError` where there is none, or where the server refuses."""
        told = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if told.scheme == "https" else http.client.HTTPConnection
        try:
            connection = kind(told.hostname or "", told.port, timeout=_PATIENCE_S)
        except ValueError:
            raise InputError(f"--url {shorten(self.url)!r} names no port; give http://HOST:5000") from None
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.token}"} if self.token else {}
        )
        path = f"{urllib.parse.quote(told.path.rstrip('/'), safe='/%')}/api/2.0/mlflow/{what}{query and '?' + query}"
        try:
            connection.connect()
            with _hung_up_after(connection.sock, _LONGEST_S):
                connection.request(
                    "GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers
                )
                answer = connection.getresponse()
                text = answer.read(_MOST_ANSWER)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise InputError(f"{shorten(self.url)} does not answer: {shorten(str(error) or 'no answer')}") from None
        finally:
            connection.close()
        try:
            found = json.loads(text or b"{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InputError(f"{shorten(self.url)} is no MLflow server: {what} was answered with no JSON object")
        if answer.status != 200:
            why = shorten(str(found.get("message") or found.get("error_code") or answer.reason))
            raise MlflowRefusal(f"{shorten(self.url)} refuses {what}: {why}", code=str(found.get("error_code", "")))
        return found

    def told(self, answer: Mapping[str, Any], *names: str) -> str:
        """The word under ``names``, one in the other. Raises `InputError` where the server tells none."""
        found: Any = answer
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, str | int) or not str(found):
            raise InputError(f"{shorten(self.url)} is no MLflow server: it tells no {' '.join(names)}")
        return str(found)


@contextmanager
def _hung_up_after(connection: socket.socket | None, seconds: float) -> Iterator[None]:
    """A server that sends a byte now and then keeps nobody: its line is cut."""

    def hang_up() -> None:
        with suppress(OSError):
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class MlflowRefusal(InputError):
    """The server answered no; ``code`` is its own word."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


def send_runs(
    server: MlflowServer, ledger: RunLedger, runs: Sequence[LedgerRun], *, experiment: str
) -> tuple[int, int]:
    """(sent, already there): each run with its settings, figures, every point that it logged, and its events as tags.

    A run that the experiment has of this ledger and id is left alone; one that is still running is sent as it is now.
    """
    place = _experiment(server, experiment)
    there = set(_known(server, place))
    place_of_ledger = ledger.path.resolve() if isinstance(ledger.path, Path) else ledger.path
    sent = 0
    for run in sorted(runs, key=lambda one: one.id):
        name = f"{place_of_ledger}#{run.id}"
        if name not in there:
            _send(server, place, name, run, ledger)
            sent += 1
    return sent, len(runs) - sent


def _experiment(server: MlflowServer, name: str) -> str:
    query = urllib.parse.urlencode({"experiment_name": name})
    try:
        found = server.ask("experiments/get-by-name", query=query)
    except MlflowRefusal as refusal:
        if refusal.code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return server.told(server.ask("experiments/create", {"name": name}), "experiment_id")
    place = server.told(found, "experiment", "experiment_id")
    if found["experiment"].get("lifecycle_stage") == "deleted":
        raise InputError(f"experiment {shorten(name)!r} is deleted there; restore it, or give another --experiment")
    return place


def _known(server: MlflowServer, experiment: str) -> Iterator[str]:
    """The runs of ledgers that the experiment has, by their tags."""
    page, seen = "", set[str]()
    while page not in seen:
        seen.add(page)
        asked: dict[str, Any] = {"experiment_ids": [experiment], "max_results": 1000}
        found = server.ask("runs/search", asked | ({"page_token": page} if page else {}))
        for run in _objects(found.get("runs")):
            data = run.get("data")
            tags = data.get("tags") if isinstance(data, Mapping) else None
            yield from (str(tag.get("value")) for tag in _objects(tags) if tag.get("key") == _OURS)
        page = str(found.get("next_page_token") or "")
        if not page:
            return
        if len(seen) >= _MOST_PAGES:
            break
    raise InputError(f"{shorten(server.url)} lists runs without an end; give an --experiment of fewer")


def _objects(found: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _send(server: MlflowServer, experiment: str, name: str, run: LedgerRun, ledger: RunLedger) -> None:
    tags = {_OURS: name, "git": run.git, "tags": " ".join(run.tags), "why": run.why}
    tags |= {f"event.{at}": f"{one.at_s:.0f} {one.what}" for at, one in enumerate(ledger.events(run.id)[:50])}
    started = {
        "experiment_id": experiment, "run_name": run.name, "start_time": round(run.started_s * 1e3),
        "tags": [{"key": key, "value": value[:_TAG]} for key, value in tags.items() if value],
    }  # fmt: skip
    there = server.told(server.ask("runs/create", started), "run", "info", "run_id")
    stated = {"model": run.model, "gpu": run.gpu, "gpus": run.gpus} | flat(run.config) | flat(run.machine, "machine.")
    told = {_key(key): str(value)[:_PARAM] for key, value in stated.items() if value not in (None, "")}
    params = [{"key": key, "value": value} for key, value in told.items()]
    for at in range(0, len(params), _PARAMS):
        server.ask("runs/log-batch", {"run_id": there, "params": params[at : at + _PARAMS]})
    metrics = list(_metrics(run, ledger))
    for at in range(0, len(metrics), _METRICS):
        server.ask("runs/log-batch", {"run_id": there, "metrics": metrics[at : at + _METRICS]})
    ended = {} if run.ended_s is None else {"end_time": round(run.ended_s * 1e3)}
    server.ask("runs/update", {"run_id": there, "status": _STATUS[run.status], **ended})


def _metrics(run: LedgerRun, ledger: RunLedger) -> Iterator[dict[str, Any]]:
    """Every point of every series in order, then the figures that stand for the whole run: MLflow shows the last."""
    for name in ledger.series(run.id):
        for step, (at_s, value) in enumerate(zip(*ledger.points(run.id, name), strict=True)):
            yield {"key": _key(name), "value": value, "timestamp": round(at_s * 1e3), "step": step}
    at_ms = round((run.ended_s or run.started_s) * 1e3)
    for name, value in run.figures.items():
        yield {"key": _key(f"{name}_of_run"), "value": value, "timestamp": at_ms, "step": 0}


def _key(name: str) -> str:
    """A name as MLflow takes it: letters, digits, _ - . space and /."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)[:_KEY]
