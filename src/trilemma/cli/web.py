"""``trilemma web``: the questions in a browser, on this machine alone unless told otherwise."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from trilemma.cli.arguments import whole_number
from trilemma.cli.output import YES
from trilemma.errors import InputError

_HIGHEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", metavar="N", type=whole_number, default=8642, help="port to listen on (default 8642)")
    parser.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1",
        help="address to listen on (default 127.0.0.1: this machine alone; anybody who reaches another may ask)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    if arguments.port > _HIGHEST_PORT:
        raise InputError(f"--port {arguments.port} is out of range; give 1 to {_HIGHEST_PORT}")
    for package in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"trilemma web needs {package}; pip install 'trilemma[web]'")
    from trilemma.web.server import serve

    print(f"http://{arguments.host}:{arguments.port}/ (Ctrl-C ends it)", file=sys.stderr)
    serve(host=arguments.host, port=arguments.port)
    return YES
