"""The webhook over TLS, as an API server calls it."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from review_documents import UID, body, deployment

from trilemma.admission.judging import Policy
from trilemma.admission.review import MOST_BYTES
from trilemma.admission.server import AdmissionServer, context_of
from trilemma.errors import InputError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")

SMALL = ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture
def port(certificate: tuple[Path, Path]) -> Iterator[int]:
    server = AdmissionServer(("127.0.0.1", 0), Policy(), context_of(*certificate))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def caller(port: int, certificate: tuple[Path, Path]) -> Iterator[http.client.HTTPSConnection]:
    connection = http.client.HTTPSConnection(
        "localhost", port, timeout=30, context=ssl.create_default_context(cafile=str(certificate[0]))
    )
    yield connection
    connection.close()


def asked(
    caller: http.client.HTTPSConnection, method: str, path: str, text: bytes = b"", **headers: str
) -> tuple[int, Any]:
    caller.request(method, path, text or None, {"Content-Type": "application/json", **headers})
    response = caller.getresponse()
    return response.status, json.loads(response.read())


def test_reviews_are_answered_one_after_another_on_one_connection(caller: http.client.HTTPSConnection) -> None:
    for manifest, allowed in (
        (deployment(SMALL), True),
        (deployment(["--model", "meta-llama/Llama-3.1-70B-Instruct"]), False),
    ):
        status, answer = asked(caller, "POST", "/validate?timeout=10s", body(manifest))
        assert (status, answer["kind"], answer["response"]["uid"]) == (200, "AdmissionReview", UID)
        assert answer["response"]["allowed"] is allowed
    assert asked(caller, "GET", "/healthz") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("path", "text", "status"), [("/validate", b"not json", 400), ("/other", b"{}", 404), ("/validate", b"{}", 400)]
)
def test_what_is_no_review_is_refused(caller: http.client.HTTPSConnection, path: str, text: bytes, status: int) -> None:
    assert asked(caller, "POST", path, text)[0] == status


def test_a_body_that_is_too_long_is_not_read(caller: http.client.HTTPSConnection) -> None:
    caller.putrequest("POST", "/validate")
    caller.putheader("Content-Length", str(MOST_BYTES + 1))
    caller.endheaders()
    assert caller.getresponse().status == 413


def test_callers_that_say_nothing_hold_up_nobody(port: int, caller: http.client.HTTPSConnection) -> None:
    """Forty connections without a handshake, and one asks behind them."""
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    began = time.monotonic()
    assert asked(caller, "GET", "/healthz")[0] == 200
    assert time.monotonic() - began < 4.0
    for one in silent:
        one.close()


def test_a_certificate_that_is_none_is_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for cert, key in (
        (tmp_path / "bad.pem", certificate[1]),
        (tmp_path / "none.pem", certificate[1]),
        (certificate[1], certificate[0]),
    ):
        with pytest.raises(InputError, match="no certificate and key in PEM"):
            context_of(cert, key)
