"""One process that makes answers: questions come in as lines of JSON, answers go out as a line of JSON and the text it announces.

``python -m trilemma.web.worker`` is started by `workers` and ends with the server that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from trilemma.errors import InputError
from trilemma.web.asking import KeptAnswer, made

#: Asked by itself at the start, so that what every answer needs is read before the first is waited for.
_FIRST = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": "1024", "osl": "128"}


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer line by line until the questions end."""
    for line in questions:
        head, text = reply(json.loads(line))
        answers.write(json.dumps({**head, "bytes": len(text)}).encode() + b"\n" + text)
        answers.flush()


def reply(message: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """What is announced, and the text: a document or drawing, or in one line why there is none."""
    try:
        kept: KeptAnswer = made(message["kind"], message["asked"])
    except (InputError, PermissionError) as error:
        return {"refused": True}, " ".join(str(error).split()).encode()
    except Exception as error:  # a bug of ours ends a question, not the worker
        return {"failed": True}, type(error).__name__.encode()
    return {"yes": kept.yes}, kept.document.encode()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its workers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write between answers
    reply({"kind": "fit", "asked": _FIRST})
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
