"""``trilemma hardware [NAME]``: the accelerator catalogue."""

from __future__ import annotations

import argparse
import json
from typing import Any

from trilemma.cli.arguments import add_output_arguments
from trilemma.cli.output import screen_width, show

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
    if arguments.name is None and not arguments.explain:
        show(render_catalogue(chosen, width=screen_width()))
    else:
        texts = (render_accelerator(one, explain=arguments.explain, width=screen_width()) for one in chosen)
        show("\n\n".join(texts))
    return 0


def _document(accelerators: tuple[Any, ...], *, whole: bool) -> str:
    from trilemma.report.accelerator_document import accelerator_document

    entries = [accelerator_document(one, whole=whole) for one in accelerators]
    return json.dumps({"schema": SCHEMA, "accelerators": entries}, indent=2, ensure_ascii=False, allow_nan=False)
