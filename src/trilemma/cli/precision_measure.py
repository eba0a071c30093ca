"""``trilemma precision measure WEIGHTS --data TEXT``: what each group of weights loses in each format, on real tokens."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from trilemma.cli.arguments import add_output_arguments, whole_number
from trilemma.cli.output import YES, screen_width, show

if TYPE_CHECKING:
    from trilemma.precision.activation_statistics import ActivationStatistics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument(
        "--proxies", action="store_true", help="SQNR and weighted error only: one pass over the weights"
    )
    parser.add_argument("--no-activations", action="store_true", help="leave statistics of activations and cache out")
    add_output_arguments(parser)


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """The weights, the data and the candidate formats."""
    parser.add_argument(
        "weights", metavar="WEIGHTS", help="folder with config.json and *.safetensors, *.gguf, llama2.c *.bin"
    )
    parser.add_argument("--data", metavar="TEXT", required=True, help="UTF-8 text, or token ids as *.npy")
    parser.add_argument(
        "--formats", metavar="A,B,…", help="candidate formats, or a set: default, vllm, gguf (see trilemma formats)"
    )
    parser.add_argument(
        "--sequences", type=whole_number, default=8, metavar="N", help="windows to calibrate on, and to judge by"
    )
    parser.add_argument("--window", type=whole_number, default=256, metavar="TOKENS", help="tokens of one window")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.precision.measure import candidates, open_bench
    from trilemma.precision.sensitivity import measure_sensitivities

    bench = open_bench(arguments.weights, arguments.data, sequences=arguments.sequences, window=arguments.window)
    found = measure_sensitivities(
        bench.calibration, candidates(arguments.formats), proxies_only=arguments.proxies, report=progress
    )
    activations: tuple[ActivationStatistics, ...] = ()
    if not arguments.no_activations:
        from trilemma.precision.activation_statistics import measure_activations

        activations = measure_activations(bench.calibration)
    if arguments.json:
        from trilemma.report.document import dumps
        from trilemma.report.measurement import measurement_document

        print(dumps(measurement_document(found, activations)))
    else:
        from trilemma.report.measurement import render_activations, render_sensitivities

        show(render_sensitivities(found, width=screen_width()))
        if activations:
            print()
            show(render_activations(activations, width=screen_width()))
    return YES


def progress(words: str) -> None:
    """One line on stderr."""
    print(words, file=sys.stderr)
