"""``trilemma upgrade``: what a newer (or older) version of the engine changes for one command."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import add_free_argument, add_models_dir
from trilemma.cli.check import cluster_of, model_of, on_cards
from trilemma.cli.output import NO, YES, screen_width
from trilemma.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trilemma upgrade --from V1 --to V2 --gpu G[:N] [options] -- ENGINE COMMAND…"
    parser.add_argument("--from", dest="old", required=True, metavar="V1", help="the version that runs today")
    parser.add_argument("--to", dest="new", required=True, metavar="V2", help="the version to go to")
    parser.add_argument("--gpu", metavar="G[:N]", help="the cards it runs on, such as h100-sxm:8")
    add_free_argument(parser)
    add_models_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- ENGINE COMMAND…", help="as you would run or deploy it"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when the command goes on as it stands, 1 when a flag is refused or the plan does not start."""
    from trilemma import engines
    from trilemma.cli.check_exported import exported_weights, prediction_beside
    from trilemma.engines.extract import extract
    from trilemma.engines.loading import while_loading
    from trilemma.estimate.upgrade import upgrade
    from trilemma.quantities import GIB

    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise InputError(
            "no engine command given; put it after --, such as trilemma upgrade --from 0.19 --to 0.21 -- vllm serve MODEL"
        )
    engine, own = extract(words)
    if engine not in engines.readable():
        raise InputError(f"{engine} trains models; upgrade compares versions of {', '.join(engines.readable())}")
    command = on_cards(arguments.gpu, engines.get(engine).read(own))
    model, _ = exported_weights(prediction_beside(words), command, arguments.models) or model_of(
        command, arguments.models
    )
    cluster, _, _ = cluster_of(arguments.gpu, command)
    if cluster.cards:
        raise InputError(
            f"upgrade compares versions on cards of one kind, and --gpu names {cluster.name}; name one kind"
        )
    found = upgrade(
        own,
        engine=engine,
        old=arguments.old,
        new=arguments.new,
        model=while_loading(model, command.plan.pool.options),
        cluster=cluster,
        free_bytes=None if arguments.free_gib is None else arguments.free_gib * GIB,
    )
    if arguments.json:
        from trilemma.report.document import dumps
        from trilemma.report.upgrade import upgrade_document

        print(dumps(upgrade_document(found)))
    else:
        from trilemma.report.upgrade import render_upgrade

        print(render_upgrade(found, width=max(screen_width(), 100)))
    return YES if found.harmless else NO
