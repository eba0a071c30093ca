"""``trilemma admission``: a validating webhook of Kubernetes that denies engines which cannot start."""

from __future__ import annotations

import argparse
import json
import sys

from trilemma.cli.arguments import number, whole_number
from trilemma.cli.output import NO, YES
from trilemma.errors import InputError
from trilemma.outside_files import read_bytes

_HIGHEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    judged = parser.add_argument_group("what is denied")
    judged.add_argument(
        "--gpu", metavar="G", help="card of pods whose labels name none (default: those are not judged)"
    )
    judged.add_argument(
        "--deny-from", metavar="P", type=number, default=0.9,
        help="deny what does not start with at least this chance (default 0.9); less is a warning",
    )  # fmt: skip
    judged.add_argument(
        "--unknown", choices=("allow", "deny"), default="allow",
        help="what happens to models, cards and flags that cannot be judged (default allow, with a warning)",
    )  # fmt: skip
    judged.add_argument("--models", metavar="DIR", help="look hub ids up as DIR/<org>--<name>/config.json first")
    served = parser.add_argument_group("where it answers")
    served.add_argument("--cert", metavar="FILE", help="certificate in PEM that the API server trusts")
    served.add_argument("--key", metavar="FILE", help="its key in PEM")
    served.add_argument("--host", metavar="ADDRESS", default="0.0.0.0", help="address to listen on (default 0.0.0.0)")
    served.add_argument("--port", metavar="N", type=whole_number, default=8443, help="port (default 8443)")
    parser.add_argument(
        "--review",
        metavar="FILE",
        help="answer one AdmissionReview from a file (- is standard input) and end: 1 where denied",
    )


def run(arguments: argparse.Namespace) -> int:
    from trilemma.admission.judging import Policy

    policy = Policy(
        gpu=arguments.gpu, deny_from=arguments.deny_from, unknown=arguments.unknown, models=arguments.models
    )
    if arguments.review is not None:
        return _once(arguments.review, policy)
    if arguments.cert is None or arguments.key is None:
        raise InputError(
            "the API server speaks TLS alone; give --cert FILE and --key FILE (or --review FILE to try one)"
        )
    if arguments.port > _HIGHEST_PORT:
        raise InputError(f"--port {arguments.port} is out of range; give 1 to {_HIGHEST_PORT}")
    from trilemma.admission.server import AdmissionServer, context_of

    context = context_of(arguments.cert, arguments.key)
    try:
        server = AdmissionServer((arguments.host, arguments.port), policy, context)
    except OSError as error:
        raise InputError(f"--port {arguments.port} of {arguments.host} cannot be listened on: {error}") from None
    print(f"https://{arguments.host}:{arguments.port}/validate (Ctrl-C ends it)", file=sys.stderr)
    with server:
        server.serve_forever()
    return YES


def _once(name: str, policy: object) -> int:
    from trilemma.admission.judging import Policy
    from trilemma.admission.review import MOST_BYTES, answer_document, read_review
    from trilemma.admission.server import reviewed

    assert isinstance(policy, Policy)
    if name == "-":
        body = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        body = read_bytes(name, most_bytes=MOST_BYTES, what="--review", give="give the JSON of an AdmissionReview")
    decision = reviewed(body, policy)
    print(json.dumps(answer_document(read_review(body).uid, decision), indent=2, ensure_ascii=False))
    return YES if decision.allowed else NO
