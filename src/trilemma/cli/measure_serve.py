"""``trilemma measure serve``: a running server, or one that is started, under load."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trilemma.cli.arguments import number, whole_number
from trilemma.cli.output import NO, YES, screen_width, show
from trilemma.errors import InputError, shorten
from trilemma.outside_files import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trilemma.measuring.energy.sampler import PowerSampler
    from trilemma.simulation.serving.traffic import Arrival

#: Columns of the table that only who ran it knows.
_STATED = ("gpu", "gpus", "tp", "engine", "version", "precision_weights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trilemma measure serve [options] (--url URL | -- COMMAND…)"
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default http://127.0.0.1:8000)")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument(
        "--served-model", default="", metavar="NAME", help="its name there (default: as /v1/models says)"
    )
    load = parser.add_argument_group("load")
    load.add_argument("--concurrency", type=whole_number, metavar="N", help="so many at once (closed loop; default 1)")
    load.add_argument("--rate", type=number, metavar="R", help="so many requests a second, Poisson (open loop)")
    load.add_argument("--arrivals", metavar="WORDS", help="poisson:R, gamma:R:CV, constant:R or burst (open loop)")
    load.add_argument("--trace", type=Path, metavar="FILE", help="CSV or JSON lines with arrival, input and output")
    load.add_argument(
        "--isl", default="256", metavar="D", help="prompt tokens: 256, uniform:LOW:HIGH, lognormal:MEAN:CV, …"
    )
    load.add_argument("--osl", default="64", metavar="D", help="output tokens, likewise (default 64)")
    load.add_argument("--requests", type=whole_number, default=64, metavar="N", help="how many (default 64)")
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--ttft", type=number, metavar="MS", help="target that goodput counts")
    load.add_argument("--tpot", type=number, metavar="MS", help="target that goodput counts")
    load.add_argument(
        "--stall", type=number, default=60.0, metavar="S", help="a server silent so long is given up (default 60)"
    )
    load.add_argument(
        "--most-seconds", type=number, default=3600.0, metavar="S", help="the run ends then (default 3600)"
    )
    load.add_argument("--ready", type=number, default=900.0, metavar="S", help="wait so long for COMMAND (default 900)")
    energy = parser.add_argument_group("energy, of a server on this machine")
    energy.add_argument("--energy", action="store_true", help="sample what the cards draw (extra: nvml; else RAPL)")
    energy.add_argument(
        "--cards", type=whole_number, metavar="N", help="no figure unless so many tell their power (default: all here)"
    )
    out = parser.add_argument_group("output")
    out.add_argument("--result", type=Path, metavar="FILE.json", help="for calibrate serving and settle")
    out.add_argument("--table", type=Path, metavar="FILE.csv", help="for validate; state gpu, engine and layout beside")
    out.add_argument("--log", type=Path, metavar="FILE.jsonl", help="one line a request, for simulate serving --trace")
    for name in _STATED:
        out.add_argument(f"--{name.replace('_', '-')}", default="", metavar="WORD", help=argparse.SUPPRESS)
    out.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """Exit 0 where every request was answered, 1 where some failed, 2 where the server answers nothing."""
    from trilemma.cli.progress import bar
    from trilemma.measuring.serving.load import LoadAsked, run_load
    from trilemma.measuring.serving.outcome import bench_document, log_text, served_load, table_text
    from trilemma.measuring.serving.process import started
    from trilemma.measuring.serving.stream import Endpoint
    from trilemma.report.document import dumps
    from trilemma.report.served_load import load_document, render_load

    endpoint = Endpoint.parse(
        arguments.url,
        chat=arguments.endpoint == "chat",
        model=arguments.served_model,
        key=os.environ.get("OPENAI_API_KEY", ""),
    )
    arrivals, at_once, rate = _traffic(arguments)
    asked = LoadAsked(
        arrivals=arrivals, at_once=at_once, stall_s=arguments.stall, most_s=arguments.most_seconds, seed=arguments.seed
    )
    with contextlib.ExitStack() as stack:
        process = None
        if arguments.behind:
            process = stack.enter_context(started(arguments.behind, endpoint, ready_s=arguments.ready))
        power = _power(arguments, stack)
        alive = (lambda: process.poll() is None) if process is not None else (lambda: True)
        found = run_load(endpoint, asked, alive=alive, progress=bar)
    figures = served_load(
        found, concurrency=at_once, rate=rate, ttft_ms=arguments.ttft, tpot_ms=arguments.tpot,
        energy=None if power is None else power.window,
    )  # fmt: skip
    if arguments.result is not None and figures.completed:
        _write(arguments.result, dumps(bench_document(figures)) + "\n")
    if arguments.table is not None and figures.completed:
        _write(arguments.table, table_text(figures, {name: getattr(arguments, name) for name in _STATED}))
    if arguments.log is not None:
        _write(arguments.log, log_text(found))
    if arguments.json:
        print(dumps(load_document(figures)))
    else:
        show(render_load(figures, width=screen_width()))
    return YES if figures.whole else NO


def _power(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> PowerSampler | None:
    """The sampler of what the cards draw, running, where it is asked for."""
    from trilemma.measuring.energy.sampler import PowerSampler, power_source

    if not arguments.energy:
        if arguments.cards is not None:
            raise InputError("--cards counts the cards of --energy; give that too")
        return None
    return stack.enter_context(PowerSampler(power_source(), cards=arguments.cards))


def _traffic(arguments: argparse.Namespace) -> tuple[Sequence[Arrival], int | None, float | None]:
    """(requests, so many at once or None in an open loop, its rate)."""
    from trilemma.simulation.serving.drawn import ArrivalProcess, LengthDistribution, drawn
    from trilemma.simulation.serving.traces import read_trace

    stated = [name for name in ("concurrency", "rate", "arrivals", "trace") if getattr(arguments, name) is not None]
    if len(stated) > 1:
        raise InputError(f"--{stated[0]} and --{stated[1]} both state the load; give one of them")
    if arguments.trace is not None:
        found = tuple(itertools.islice(read_trace(arguments.trace), arguments.requests))
        if not found:
            raise InputError(f"--trace {shorten(str(arguments.trace))} holds no request")
        return found, None, None
    words = arguments.arrivals or (f"poisson:{arguments.rate}" if arguments.rate is not None else "burst")
    process = ArrivalProcess.parse(words)
    lengths = [LengthDistribution.parse(getattr(arguments, name), name) for name in ("isl", "osl")]
    found = tuple(drawn(process, *lengths, requests=arguments.requests, seed=arguments.seed))
    if arguments.rate is None and arguments.arrivals is None:
        return found, arguments.concurrency or 1, None
    return found, None, process.rate if process.rate < 1e9 else None


def _write(path: Path, text: str) -> None:
    with written(path):
        path.write_text(text, encoding="utf-8")
