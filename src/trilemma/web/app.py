"""The page and the API: ``GET /api/fit?model=…&gpu=…`` answers with the command line's own document."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from trilemma.errors import InputError
from trilemma.web.asking import MOST_COMMAND, Answers, answered, known_options

Handler = Callable[[Request], Awaitable[Response]]
#: Answers made at once and waited for; seconds for one.
_AT_ONCE, _WAITING, _ANSWER_S = 2, 64, 30.0
#: Questions of one client a second, and at once; clients remembered.
_RATE, _BURST, _CLIENTS = 300.0, 600.0, 4096
_BODY_S = 5.0
_MOST_QUERY = 8192
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
          "svg": "image/svg+xml"}  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_ASSETS = ("page.css", "page.js", "words.js", "icon.svg")


def application(*, host: str = "127.0.0.1", port: int = 8642) -> FastAPI:
    """The whole of it; ``host`` and ``port`` are those that it will be reached by."""
    app = FastAPI(title="Trilemma", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    answers, gate, rates = Answers(), _Gate(), _Rates()
    own = {f"{name}:{port}" for name in _LOOPBACK} if host in (*_LOOPBACK, "::1") else None

    @app.middleware("http")
    async def guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _refused(request, own, rates)
        response = refused or await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(_asset("page.html"), media_type=_TYPES["html"])

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            return PlainTextResponse("no such file", status_code=404)
        return Response(
            _asset(name), media_type=_TYPES[name.rpartition(".")[2]], headers={"Cache-Control": "max-age=300"}
        )

    @app.get("/api/catalogue", summary="models, cards and options that may be named")
    async def catalogue() -> Response:
        return Response(_catalogue(), media_type="application/json", headers={"Cache-Control": "max-age=300"})

    @app.get("/api/chart.svg", summary="the picture of an answer; `ask` is the question")
    async def chart(request: Request) -> Response:
        asked = dict(request.query_params)
        question = asked.pop("ask", "fit")
        return await gate.through(lambda: Response(_drawn(question, asked), media_type=_TYPES["svg"]))

    @app.post("/api/check", summary="an engine's command, as the body's `command`, with `gpu`")
    async def check(request: Request) -> Response:
        try:
            asked = await _body(request)
        except InputError as error:
            return JSONResponse({"error": str(error)}, status_code=422, headers={"Connection": "close"})
        return await gate.through(lambda: _document(answers, "check", asked))

    @app.get("/api/{question}", summary="fit, plan, compare, recommend: options as on the command line")
    async def ask(question: str, request: Request) -> Response:
        asked = dict(request.query_params)
        return await gate.through(lambda: _document(answers, question, asked))

    return app


def _document(answers: Answers, question: str, asked: dict[str, str]) -> Response:
    kept = answers.of(question, asked)
    return Response(kept.document, media_type="application/json", headers={"X-Answer": "yes" if kept.yes else "no"})


def _drawn(question: str, asked: dict[str, str]) -> str:
    """The chart of an answer as SVG: nothing in it runs, and the page shows it as an image."""
    from trilemma.report.charts.write import svg_of

    spec = answered(question, asked).chart()
    if spec is None:
        raise InputError("this answer has no picture")
    return svg_of(spec)


def _refused(request: Request, own: set[str] | None, rates: _Rates) -> Response | None:
    """Why a request goes no further: another host's name for this one, too long, or too many."""
    if own is not None and request.headers.get("host", "") not in own:
        return PlainTextResponse("this server answers to its own name alone", status_code=421)
    if len(request.url.query) > _MOST_QUERY:
        return JSONResponse({"error": "the query is longer than is read here"}, status_code=414)
    client = request.client.host if request.client is not None else ""
    if not rates.allows(client):
        return JSONResponse({"error": "too many questions a second"}, status_code=429, headers={"Retry-After": "1"})
    return None


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


class _Gate:
    """So many answers at once, so many waiting, and each within its time."""

    def __init__(self) -> None:
        self._turn, self._waiting = asyncio.Semaphore(_AT_ONCE), 0

    async def through(self, make: Callable[[], Response]) -> Response:
        if self._waiting >= _WAITING:
            return JSONResponse({"error": "too many questions wait"}, status_code=503, headers={"Retry-After": "2"})
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.wait_for(asyncio.to_thread(_safely, make), _ANSWER_S)
        except TimeoutError:
            return JSONResponse({"error": f"no answer within {_ANSWER_S:g} seconds; ask for less"}, status_code=503)
        finally:
            self._waiting -= 1


def _safely(make: Callable[[], Response]) -> Response:
    try:
        return make()
    except InputError as error:
        return JSONResponse({"error": " ".join(str(error).split())}, status_code=422)
    except PermissionError as error:
        return JSONResponse({"error": str(error)}, status_code=422)


class _Rates:
    """A bucket of questions for each client, filled at `_RATE` a second."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        now = time.monotonic()
        left, since = self._left.pop(client, (_BURST, now))
        left = min(_BURST, left + (now - since) * _RATE) - 1
        self._left[client] = (max(left, -1.0), now)
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return left >= 0


@cache
def _asset(name: str) -> bytes:
    return (files("trilemma.web") / "page" / name).read_bytes()


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
