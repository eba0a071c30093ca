"""``trilemma measure pilot MODEL``: a real training step and generation loop, measured beside what is predicted."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import whole_number
from trilemma.cli.measure import add_threads, progress
from trilemma.cli.output import NO, YES, screen_width, show
from trilemma.errors import InputError

#: A model made small, where one of the options says how.
_LAYERS, _HIDDEN, _VOCAB = 4, 512, 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name or config.json; weights are random")
    parser.add_argument(
        "--gpu", metavar="G", help="card or file of the prediction (default: this one, else measured first)"
    )
    parser.add_argument(
        "--device", default="", metavar="D", help="cpu, cuda or cuda:1 (default: the first card, else cpu)"
    )
    add_threads(parser)
    parser.add_argument(
        "--layers",
        type=whole_number,
        metavar="N",
        help="make the model small: at most so many layers (default with --hidden: 4), and as wide as --hidden says",
    )
    parser.add_argument(
        "--hidden",
        type=whole_number,
        metavar="N",
        help="make the model small: about so wide (default with --layers: 512)",
    )
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="of weights, gradients and moments")
    parser.add_argument("--recompute", choices=("none", "full"), default="none", help="full checkpoints every layer")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument(
        "--seq", type=whole_number, default=256, metavar="N", help="tokens of a training sequence (default 256)"
    )
    parser.add_argument(
        "--micro-batch", type=whole_number, default=2, metavar="N", help="sequences of the step (default 2)"
    )
    parser.add_argument(
        "--isl", type=whole_number, default=64, metavar="N", help="prompt to generate from (default 64)"
    )
    parser.add_argument("--osl", type=whole_number, default=32, metavar="N", help="tokens to generate (default 32)")
    parser.add_argument("--batch", type=whole_number, default=1, metavar="N", help="prompts at once (default 1)")
    parser.add_argument(
        "--steps", type=whole_number, default=5, metavar="N", help="repeats; the median counts (default 5)"
    )
    parser.add_argument("--only", choices=("training", "generation"), help="leave the other out")
    parser.add_argument("--bar", type=float, metavar="SHARE", help="exit 1 where memory, step or token is off by more")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.piloted import pilot
    from trilemma.cli.measure_activations import config_of
    from trilemma.measured.activations.small_models import shrink, small_words, text_part
    from trilemma.measuring.device import find_device
    from trilemma.measuring.pilot import PilotAsked
    from trilemma.report.document import dumps
    from trilemma.report.pilot import pilot_document, render_pilot

    if arguments.osl < 2:
        raise InputError("--osl 1 has no time between tokens; give at least 2")
    name, config = config_of(arguments.model)
    config = text_part(config)
    if arguments.layers or arguments.hidden:
        whole = config
        config = shrink(config, layers=arguments.layers or _LAYERS, hidden=arguments.hidden or _HIDDEN, vocab=_VOCAB)
        name = f"{name} made small ({small_words(whole, config)})"
    asked = PilotAsked(
        config=config, seq=arguments.seq, micro_batch=arguments.micro_batch, fmt=arguments.dtype,
        recompute=arguments.recompute == "full", attention=arguments.attention, isl=arguments.isl, osl=arguments.osl,
        decode_batch=arguments.batch, steps=arguments.steps,
    )  # fmt: skip
    found = pilot(
        asked, find_device(arguments.device, threads=arguments.threads), name=name, gpu=arguments.gpu,
        training=arguments.only != "generation", generating=arguments.only != "training", progress=progress,
    )  # fmt: skip
    if arguments.json:
        print(dumps(pilot_document(found)))
    else:
        show(render_pilot(found, width=screen_width()))
    judged = [gap for gap in found.gaps if gap.figure in ("peak memory", "training step", "token")]
    return NO if arguments.bar is not None and any(abs(gap.error) > arguments.bar for gap in judged) else YES
