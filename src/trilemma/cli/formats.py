"""``trilemma formats [NAME…]``: number formats, their range and cost, and what they keep."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from trilemma.cli.arguments import add_output_arguments
from trilemma.cli.output import screen_width, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trilemma.formats.formats import Format

SCHEMA = "trilemma/formats@1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="formats in full: a name or alias such as nvfp4, bfloat16, int4_g64_zp4",
    )
    parser.add_argument(
        "--compare", action="store_true", help="quantise three kinds of data and show what each format keeps of them"
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.formats.catalogue import get, names

    chosen = [get(name) for name in arguments.names or names()]
    if arguments.json:
        print(_document(chosen, named=bool(arguments.names), compare=arguments.compare))
    elif arguments.compare:
        show(_comparison(chosen))
    elif arguments.names:
        show(_in_full(chosen, explain=arguments.explain, width=screen_width()))
    else:
        from trilemma.report.formats import render_formats

        show(render_formats(chosen, explain=arguments.explain, width=screen_width()))
    return 0


def _in_full(chosen: Sequence[Format], *, explain: bool, width: int) -> str:
    from trilemma.formats.quality import measure
    from trilemma.hardware.catalogue import all_accelerators
    from trilemma.report.formats import render_format

    known = all_accelerators()
    return "\n\n".join(render_format(one, known, measure(one), explain=explain, width=width) for one in chosen)


def _comparison(chosen: Sequence[Format]) -> str:
    from trilemma.formats.quality import DATA_KINDS, measure
    from trilemma.report.formats import render_comparison

    measured = {one.name: (one, quality) for one in chosen if (quality := measure(one)) is not None}
    left_out = [one.name for one in chosen if one.name not in measured]
    if not measured:
        return f"nothing to compare: {', '.join(left_out)} hold a tensor only with a scale, or have no encoder here"
    text = render_comparison(measured, DATA_KINDS)
    if left_out:
        text += f"\nnot compared (no scale, or no encoder here): {', '.join(left_out)}."
    return text


def _document(chosen: Sequence[Format], *, named: bool, compare: bool) -> str:
    from trilemma.report.formats import format_document

    accelerators = None
    if named:
        from trilemma.hardware.catalogue import all_accelerators

        accelerators = all_accelerators()
    entries: list[dict[str, Any]] = []
    for one in chosen:
        entry = format_document(one, accelerators)
        if compare or named:
            from trilemma.formats.quality import measure

            quality = measure(one)
            if quality is not None:
                entry["sqnr_db"] = {kind: value for kind, value in quality.items() if math.isfinite(value)}
        entries.append(entry)
    return json.dumps({"schema": SCHEMA, "formats": entries}, indent=2, ensure_ascii=False, allow_nan=False)
