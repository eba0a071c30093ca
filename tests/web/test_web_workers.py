"""Processes that make answers: they answer and refuse as this one does, and an end or an overrun of one is not the server's."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from starlette.testclient import TestClient

import trilemma as tl
from trilemma.errors import InputError
from trilemma.web import worker
from trilemma.web.app import application
from trilemma.web.asking import SPECIFICATION
from trilemma.web.workers import NoAnswer, Workers

pytestmark = pytest.mark.slow
_FIT = {"model": "llama-3.1-8b", "gpu": "l40s", "isl": "1024", "osl": "128", "concurrency": "8"}
_S = 120.0
T = TypeVar("T")


def with_one(asked: Callable[[Workers], Awaitable[T]]) -> T:
    async def whole() -> T:
        workers = Workers(1)
        workers.begin()
        try:
            return await asked(workers)
        finally:
            await workers.end()

    return asyncio.run(whole())


def test_a_worker_answers_as_the_command_line_does() -> None:
    async def ask(workers: Workers) -> None:
        told = await workers.make("fit", _FIT, within_s=_S)
        assert json.loads(told.document) == tl.fit("llama-3.1-8b", "l40s", isl=1024, osl=128, concurrency=8).to_dict()
        assert told.yes
        with pytest.raises(InputError, match="unknown model"):
            await workers.make("fit", {**_FIT, "model": "x"}, within_s=_S)
        drawn = await workers.make(SPECIFICATION, {"ask": "fit", **_FIT}, within_s=_S)
        assert json.loads(drawn.document)["title"]["text"].startswith("llama-3.1-8b on 1 x L40S")

    with_one(ask)


def test_an_answer_that_takes_too_long_ends_with_its_process() -> None:
    async def ask(workers: Workers) -> None:
        await workers.make("fit", _FIT, within_s=_S)
        first = await workers._all[0].begin()
        with pytest.raises(TimeoutError):
            await workers.make(
                "plan", {"model": "llama-3.1-70b", "gpu": "h100-sxm:64", "serve": "4096/1024"}, within_s=0.02
            )
        assert (await workers.make("fit", _FIT, within_s=_S)).yes  # the answer to this question, not that of the other
        assert await first.wait() != 0

    with_one(ask)


def test_a_process_that_ends_is_begun_again() -> None:
    async def ask(workers: Workers) -> None:
        await workers.make("fit", _FIT, within_s=_S)
        (await workers._all[0].begin()).kill()
        try:
            told = await workers.make("fit", _FIT, within_s=_S)
        except NoAnswer:
            told = await workers.make("fit", _FIT, within_s=_S)
        assert told.yes

    with_one(ask)


def test_bugs_and_refusals_are_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_kind: str, _asked: object) -> None:
        raise ZeroDivisionError

    questions = io.BytesIO(json.dumps({"kind": "fit", "asked": {"model": "x"}}).encode() + b"\n")
    answers = io.BytesIO()
    worker.serve(questions, answers)
    head, _, text = answers.getvalue().partition(b"\n")
    assert json.loads(head) == {"refused": True, "bytes": len(text)}
    assert b"\n" not in text
    monkeypatch.setattr(worker, "made", fails)
    assert worker.reply({"kind": "fit", "asked": {}}) == ({"failed": True}, b"ZeroDivisionError")


def test_the_whole_answers_with_processes() -> None:
    with TestClient(application(workers=2), base_url="http://127.0.0.1:8642") as client:
        told = client.get("/api/fit", params=_FIT)
        assert told.headers["x-answer"] == "yes"
        assert client.get("/api/fit", params=_FIT).text == told.text
        assert client.get("/api/fit", params={"model": "x"}).status_code == 422
