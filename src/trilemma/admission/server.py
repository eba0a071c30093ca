"""The webhook: HTTPS by the standard library, with bounds on bodies, time and callers at once."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trilemma.admission.judging import Policy, decide
from trilemma.admission.review import MOST_BYTES, Decision, answer_document, read_review
from trilemma.errors import InputError, with_flags

#: Seconds for a request to arrive whole; the API server itself waits 10 by default.
_READING_S = 5.0
#: Requests at once; one more is told to come again.
_AT_ONCE = 16


class AdmissionServer(ThreadingHTTPServer):
    """Answers ``POST /validate`` by ``policy``, and ``GET /healthz``."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], policy: Policy, context: ssl.SSLContext | None = None) -> None:
        super().__init__(address, _Handler)
        self.policy = policy
        self.places = threading.BoundedSemaphore(_AT_ONCE)
        self._context = context

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the request's own thread, so that a slow handshake holds up nobody else."""
        request.settimeout(_READING_S)
        if self._context is None:
            super().finish_request(request, client_address)
            return
        with self._context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that break off are no news."""


class _Handler(BaseHTTPRequestHandler):
    server: AdmissionServer
    timeout = _READING_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "trilemma", ""

    def do_GET(self) -> None:
        self._send(
            200 if self.path == "/healthz" else 404, {"status": "ok" if self.path == "/healthz" else "no such page"}
        )

    def do_POST(self) -> None:
        if self.path.partition("?")[0] != "/validate":
            self._send(404, {"error": "reviews are answered at /validate"})
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(411, "the length of the body must be stated")
        elif int(length) > MOST_BYTES:
            self._refuse(413, f"a review of {int(length):,} bytes is longer than the {MOST_BYTES:,} that are read")
        elif not self.server.places.acquire(timeout=_READING_S):
            self._refuse(503, "busy; come again")
        else:
            try:
                self._answer(self.rfile.read(int(length)))
            finally:
                self.server.places.release()

    def _answer(self, body: bytes) -> None:
        try:
            review = read_review(body)
        except InputError as error:
            self._refuse(400, str(error))
            return
        self._send(200, answer_document(review.uid, reviewed(body, self.server.policy)))

    def _refuse(self, code: int, why: str) -> None:
        self.close_connection = True
        self._send(code, {"error": why})

    def _send(self, code: int, document: dict[str, Any]) -> None:
        text = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nothing: the API server keeps the audit log."""


def reviewed(body: bytes, policy: Policy) -> Decision:
    """The decision on the review in ``body``. What cannot be judged is decided by ``policy.unknown``, our own faults too.

    Raises `InputError` where the body is no review.
    """
    review = read_review(body)
    try:
        return decide(review, policy)
    except InputError as error:
        why = f"not judged: {with_flags(error)}"
    except Exception as error:
        why = f"not judged, a bug of trilemma: {type(error).__name__}"
    return Decision(allowed=policy.unknown == "allow", message=why, warnings=(why,))


def context_of(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """TLS of a certificate and its key. Raises `InputError` where they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{certificate} and {key} are no certificate and key in PEM: {error}") from None
    return context
