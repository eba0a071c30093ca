"""The JSON API of the page: the command line's own documents, names and numbers alone, nothing of the machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import trilemma as tl
from trilemma.ask.options import OPTIONS
from trilemma.ask.purchase_options import PURCHASE
from trilemma.ask.training_options import TRAINING
from trilemma.errors import InputError
from trilemma.fence import fenced
from trilemma.web import app as app_module
from trilemma.web.app import application
from trilemma.web.asking import Answers, answered, known_options

_FIT = {"model": "llama-3.1-8b", "gpu": "l40s", "isl": "1024", "osl": "128", "concurrency": "8"}


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(application(), base_url="http://127.0.0.1:8642") as one:
        yield one


def test_fit_is_the_command_lines_document(client: TestClient) -> None:
    told = client.get("/api/fit", params=_FIT)
    assert told.status_code == 200
    assert told.headers["x-answer"] == "yes"
    assert told.json() == tl.fit("llama-3.1-8b", "l40s", isl=1024, osl=128, concurrency=8).to_dict()


def test_training_is_asked_with_seq(client: TestClient) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "h100-sxm:8", "seq": "4096", "global_batch": "64", "zero": "3"}
    told = client.get("/api/fit", params=asked).json()
    assert told["inputs"]["workload"]["seq"] == 4096
    assert told["inputs"]["plan"]["zero"] == 3


def test_the_other_questions_answer(client: TestClient) -> None:
    load = {"isl": "512", "osl": "64", "rate": "1"}
    plans = client.get("/api/plan", params={"model": "llama-3.1-8b", "gpu": "l40s:2", **load}).json()
    assert plans["schema"] == "trilemma/plans@1"
    compared = client.get("/api/compare", params={"model": "llama-3.1-8b", "gpu": "l40s:1, rtx-4090:1", **load}).json()
    assert [one["accelerator"]["id"] for one in compared["candidates"]] == ["nvidia-l40s", "nvidia-rtx-4090"]
    advice = client.get("/api/recommend", params={"model": "llama-3.1-8b", "include": "l40s", **load}).json()
    assert advice["choices"][0]["gpu"] == "nvidia-l40s"


def test_a_command_is_checked_from_the_body(client: TestClient) -> None:
    command = "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 2"
    told = client.post("/api/check", json={"command": command, "gpu": "l40s"})
    assert told.headers["x-answer"] == "no"
    assert told.json()["verdict"]["stage"] == "oom_load"
    assert told.json()["remedies"]


def test_a_picture_is_svg_without_a_script(client: TestClient) -> None:
    told = client.get("/api/chart.svg", params={"ask": "fit", **_FIT})
    assert told.headers["content-type"] == "image/svg+xml"
    assert told.text.startswith("<svg")
    assert "<script" not in told.text


def test_a_picture_is_drawn_by_the_page_too(client: TestClient) -> None:
    """Its libraries are this server's, and its policy lets nothing be compiled or fetched from elsewhere."""
    told = client.get("/api/chart.json", params={"ask": "plan", **_FIT})
    assert told.headers["content-type"] == "application/json"
    assert told.json()["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert client.get("/api/chart.json", params={"ask": "recommend", "model": "x"}).status_code == 422
    libraries = client.get("/assets/vega.js")
    assert libraries.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "window.vegaEmbed=" in libraries.text
    assert "unsafe" not in libraries.headers["content-security-policy"]


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in ("page.css", "page.js", "charts.js", "words.js", "icon.svg"):
        assert f"/assets/{name}" in page.text + client.get("/assets/page.js").text
        assert client.get(f"/assets/{name}").status_code == 200
    assert client.get("/assets/page.html").status_code == 404
    assert client.get("/assets/..%2f..%2fapp.py").status_code == 404
    assert "http://" not in page.text.replace("http://www.w3.org", "")


def test_every_word_is_there_in_both_languages() -> None:
    import re

    folder = Path(app_module.__file__).parent / "page"
    english, chinese = (
        set(re.findall(r"(\w+): \"", part)) for part in (folder / "words.js").read_text().split("\n  zh: {")
    )
    used = set(re.findall(r'data-word="(\w+)"', (folder / "page.html").read_text()))
    used |= set(re.findall(r'word\("(\w+)"\)', (folder / "page.js").read_text()))
    assert english == chinese
    assert used <= english


def test_the_catalogue_names_what_may_be_asked(client: TestClient) -> None:
    told = client.get("/api/catalogue").json()
    assert {"name": "llama-3.1-8b", "hub": "meta-llama/Llama-3.1-8B"} in told["models"]
    assert any(card["id"] == "nvidia-h200-sxm" for card in told["cards"])
    assert "log" not in told["options"]["check"]


def test_openapi_is_served(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {"/api/check", "/api/{question}", "/api/chart.svg", "/api/catalogue"} <= set(paths)


@pytest.mark.parametrize(
    "words",
    [
        {"model": "/etc/passwd"}, {"model": "../x"}, {"model": "~/x"}, {"model": "C:\\models\\x"}, {"model": "config.json"},
        {"model": "somebody/unknown-model"}, {"gpu": "/etc/hostname"}, {"gpu": "./card.toml"}, {"gpu": "card.toml"},
        {"gpu": "auto"}, {"gpu": "h100-sxm:99999"}, {"models": "/"}, {"log": "/etc/passwd"}, {"profile": "x"},
        {"precision": "/etc/passwd"}, {"nonsense": "1"},
        {"isl": "x"}, {"isl": "9" * 500}, {"gpu": ""}, {"model": ""}, {"engine": "../../x"}, {"isl": "-1"},
    ],
)  # fmt: skip
def test_paths_and_nonsense_are_refused_in_a_line(client: TestClient, words: dict[str, str]) -> None:
    told = client.get("/api/fit", params={**_FIT, **words})
    assert told.status_code == 422
    assert set(told.json()) == {"error"}
    assert "\n" not in told.json()["error"]
    assert "root:" not in told.text


@pytest.mark.parametrize(
    "command",
    ["vllm serve --config /etc/passwd x/y", "vllm serve /etc", "bash /etc/profile", "llama-server -m /etc/hostname",
     "trtllm-serve x --extra_llm_api_options /etc/passwd", "torchrun --nproc-per-node 8 /etc/passwd"],
)  # fmt: skip
def test_a_pasted_command_reads_no_file(client: TestClient, command: str) -> None:
    told = client.post("/api/check", json={"command": command, "gpu": "l40s"})
    assert told.status_code in (200, 422)
    assert "root:" not in told.text
    assert Path("/etc/hostname").read_text().strip() not in told.text.replace("l40s", "")


def test_options_that_name_files_are_not_known() -> None:
    of_files = {"models", "log", "profile", "price", "host"}
    for question in ("fit", "plan", "compare", "recommend", "check"):
        for trains in (False, True):
            assert not of_files & set(known_options(question, trains=trains))
    named = {option.name for option in (*OPTIONS, *TRAINING, *PURCHASE)}
    assert of_files <= named


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"[1]", "JSON"),
        (b'{"command": 1}', "JSON"),
        (b"[" * 90_000, "longer"),
        (b"{" + b"x" * 90_000, "longer"),
    ],
)
def test_a_broken_body_is_refused(client: TestClient, body: bytes, word: str) -> None:
    told = client.post("/api/check", content=body)
    assert told.status_code == 422
    assert word in told.text


def test_another_hosts_name_is_refused() -> None:
    with TestClient(application(), base_url="http://evil.example:8642") as other:
        assert other.get("/api/fit", params=_FIT).status_code == 421


def test_a_long_query_is_refused(client: TestClient) -> None:
    assert client.get("/api/fit?model=" + "x" * 9000).status_code == 414


def test_one_client_asks_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trilemma.web.guard._BURST", 3.0)
    monkeypatch.setattr("trilemma.web.guard._RATE", 0.001)
    with TestClient(application(), base_url="http://127.0.0.1:8642") as one:
        codes = [one.get("/api/catalogue").status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429]


def test_answers_are_kept_and_forgotten() -> None:
    answers = Answers(most=1)
    first = answers.of("fit", _FIT)
    assert answers.of("fit", dict(reversed(_FIT.items()))) is first
    answers.of("fit", {**_FIT, "osl": "64"})
    assert answers.of("fit", _FIT) is not first
    assert answers.of("fit", _FIT).document == first.document
    assert answers.kept("fit", {**_FIT, "ttft": " ", "isl": " 1024"}) is not None  # asked in other words
    assert answers.kept("plan", _FIT) is None


def test_the_fence_holds_files_and_the_network(tmp_path: Path) -> None:
    import socket
    import subprocess
    import sys

    secret = tmp_path / "secret"
    secret.write_text("secret")
    with fenced():
        with pytest.raises(FileNotFoundError):
            secret.read_text()
        with pytest.raises(FileNotFoundError):
            list(tmp_path.iterdir())
        with pytest.raises(FileNotFoundError):
            (Path(app_module.__file__).parent / "new.txt").write_text("x")
        with pytest.raises(PermissionError):
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        with pytest.raises(PermissionError):
            subprocess.run([sys.executable, "-c", ""], check=False)
        assert tl.fit("llama-3.1-8b", "l40s").fits
    assert secret.read_text() == "secret"


_WORDS = ["llama-3.1-8b", "l40s:2", "8", "0", "1e9", "vllm@0.1", "fp8", "true", "../..", "\x00", "nan"]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.sampled_from(["fit", "plan", "compare", "check", "../x", ""]),
    words=st.dictionaries(
        st.sampled_from(["model", "gpu", "isl", "osl", "rate", "tp", "engine", "precision", "seq", "command", "x"]),
        st.one_of(st.sampled_from(_WORDS), st.text(max_size=30)),
        max_size=6,
    ),
)  # fmt: skip
def test_any_words_are_answered_or_refused(question: str, words: dict[str, str]) -> None:
    refusal = ""
    try:
        json.loads(answered(question, words).to_json())
    except InputError as error:
        refusal = str(error)
    assert "\n" not in refusal


def test_a_worker_answers_whatever_else_waits(client: TestClient) -> None:
    """A question that is refused takes no place: as many as come after it are answered."""
    for _ in range(80):
        assert client.get("/api/fit", params={"model": "x"}).status_code == 422
    told: Any = client.get("/api/fit", params=_FIT)
    assert told.status_code == 200
