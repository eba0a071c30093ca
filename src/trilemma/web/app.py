"""The page and the API: ``GET /api/fit?model=…&gpu=…`` answers with the command line's own document."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from trilemma.errors import InputError
from trilemma.web.asking import DRAWING, MOST_COMMAND, SPECIFICATION, Answers, KeptAnswer, known_options
from trilemma.web.guard import Guard
from trilemma.web.workers import NoAnswer, Threads, Workers

#: Answers made at once where no processes make them, and waited for; seconds for one.
_AT_ONCE, _WAITING, _ANSWER_S = 2, 64, 30.0
_BODY_S = 5.0
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
          "svg": "image/svg+xml", "json": "application/json"}  # fmt: skip
_ASSETS = ("page.css", "page.js", "charts.js", "words.js", "icon.svg")
#: What a browser may keep: an answer stays what it is, a file as long as nobody installs another version.
_SHORTLY = {"Cache-Control": "max-age=300"}


def application(*, host: str = "127.0.0.1", port: int = 8642, workers: int = 0) -> FastAPI:
    """The whole of it; ``host`` and ``port`` are those that it will be reached by, ``workers`` processes make the answers
    (none: threads of this one)."""
    desk = _Desk(Workers(workers) if workers else Threads(), at_once=workers or _AT_ONCE)

    @asynccontextmanager
    async def alive(_: FastAPI) -> AsyncIterator[None]:
        desk.makers.begin()
        try:
            yield
        finally:
            await desk.makers.end()

    app = FastAPI(title="Trilemma", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", lifespan=alive)
    app.add_middleware(Guard, host=host, port=port)
    _add_page(app)

    @app.get("/api/chart.svg", summary="the picture of an answer; `ask` is the question")
    async def drawing(request: Request) -> Response:
        return await desk.answer(DRAWING, request.query_params, kind="svg")

    @app.get("/api/chart.json", summary="the same as a Vega-Lite specification")
    async def specification(request: Request) -> Response:
        return await desk.answer(SPECIFICATION, request.query_params)

    @app.post("/api/check", summary="an engine's command, as the body's `command`, with `gpu`")
    async def check(request: Request) -> Response:
        try:
            asked = await _body(request)
        except InputError as error:
            return JSONResponse({"error": str(error)}, status_code=422, headers={"Connection": "close"})
        return await desk.answer("check", asked)

    @app.get("/api/{question}", summary="fit, plan, compare, recommend: options as on the command line")
    async def ask(question: str, request: Request) -> Response:
        return await desk.answer(question, request.query_params)

    return app


def _add_page(app: FastAPI) -> None:
    """The page, its files and the names that it offers."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(_asset("page.html"), media_type=_TYPES["html"])

    @app.get("/assets/vega.js", include_in_schema=False)
    async def libraries() -> Response:
        found = await asyncio.to_thread(_libraries)
        if found is None:
            return PlainTextResponse("no such file", status_code=404)
        return Response(found, media_type=_TYPES["js"], headers=_SHORTLY)

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            return PlainTextResponse("no such file", status_code=404)
        return Response(_asset(name), media_type=_TYPES[name.rpartition(".")[2]], headers=_SHORTLY)

    @app.get("/api/catalogue", summary="models, cards and options that may be named")
    async def catalogue() -> Response:
        return Response(_catalogue(), media_type=_TYPES["json"], headers=_SHORTLY)


class _Desk:
    """Questions taken, so many at once, so many waiting, and each within its time; answers made before are kept."""

    def __init__(self, makers: Threads | Workers, *, at_once: int) -> None:
        self.makers = makers
        self._answers, self._turn, self._waiting = Answers(), asyncio.Semaphore(at_once), 0

    async def answer(self, what: str, words: Any, *, kind: str = "json") -> Response:
        asked = dict(words)
        kept = self._answers.kept(what, asked)
        try:
            if kept is None:
                kept = self._answers.keep(what, asked, await self._made(what, asked))
        except (InputError, PermissionError) as error:
            return JSONResponse({"error": " ".join(str(error).split())}, status_code=422)
        except TimeoutError:
            return JSONResponse({"error": f"no answer within {_ANSWER_S:g} seconds; ask for less"}, status_code=503)
        except NoAnswer as error:
            return JSONResponse({"error": str(error)}, status_code=503, headers={"Retry-After": "2"})
        return Response(kept.document, media_type=_TYPES[kind], headers={"X-Answer": "yes" if kept.yes else "no"})

    async def _made(self, what: str, asked: dict[str, str]) -> KeptAnswer:
        if self._waiting >= _WAITING:
            raise NoAnswer("too many questions wait")
        self._waiting += 1
        try:
            async with self._turn:
                return await self.makers.make(what, asked, within_s=_ANSWER_S)
        finally:
            self._waiting -= 1


async def _body(request: Request) -> dict[str, str]:
    """The words of a JSON body, within bytes and seconds. Raises `InputError`."""
    import json

    read = bytearray()

    async def fill() -> None:
        async for part in request.stream():
            read.extend(part)
            if len(read) > 2 * MOST_COMMAND:
                raise InputError(f"the body is longer than {2 * MOST_COMMAND:,} bytes")

    try:
        await asyncio.wait_for(fill(), _BODY_S)
        found = json.loads(bytes(read))
    except TimeoutError:
        raise InputError(f"the body did not come within {_BODY_S:g} seconds") from None
    except (ValueError, RecursionError):
        raise InputError('the body is no JSON object such as {"command": "vllm serve …", "gpu": "h100-sxm"}') from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError("the body is no JSON object of texts")
    return found


@cache
def _asset(name: str) -> bytes:
    return (files("trilemma.web") / "page" / name).read_bytes()


@cache
def _libraries() -> bytes | None:
    """Vega, Vega-Lite and what puts them into a page, as the extra holds them; None without it."""
    if importlib.util.find_spec("vl_convert") is None:
        return None
    return str(importlib.import_module("vl_convert").javascript_bundle()).encode()


@cache
def _catalogue() -> str:
    """Names of models and cards, and the options of each question."""
    import json

    from trilemma.hardware.catalogue import all_accelerators
    from trilemma.models.catalogue import hub_id, names

    cards: list[dict[str, Any]] = [
        {
            "id": card.id,
            "name": card.name,
            "gb": card.label_gb,
            "usd": card.usd_per_hour.value if card.usd_per_hour else None,
        }
        for card in all_accelerators()
    ]
    options = {
        question: {name: option.help for name, option in known_options(question).items()}
        for question in ("fit", "plan", "compare", "recommend", "check")
    }
    models = [{"name": name, "hub": hub_id(name)} for name in names()]
    return json.dumps({"models": models, "cards": cards, "options": options})
