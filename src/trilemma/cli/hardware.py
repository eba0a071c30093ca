"""``trilemma hardware [NAME]``: the accelerator catalogue."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

from trilemma.cli.arguments import add_output_arguments

SCHEMA = "trilemma/hardware@1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="one accelerator in full: a name such as b300-sxm, or a data file"
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.hardware.catalogue import all_accelerators, find
    from trilemma.report.accelerators import render_accelerator, render_catalogue

    chosen = all_accelerators() if arguments.name is None else (find(arguments.name),)
    if arguments.json:
        print(_document(chosen, whole=arguments.name is not None or arguments.explain))
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if arguments.name is None and not arguments.explain:
        print(render_catalogue(chosen, width=width))
    else:
        texts = (render_accelerator(one, explain=arguments.explain, width=min(width or 100, 120)) for one in chosen)
        print("\n\n".join(texts))
    return 0


def _document(accelerators: tuple[Any, ...], *, whole: bool) -> str:
    from trilemma.report.accelerator_document import accelerator_document

    entries = [accelerator_document(one, whole=whole) for one in accelerators]
    return json.dumps({"schema": SCHEMA, "accelerators": entries}, indent=2, ensure_ascii=False, allow_nan=False)
