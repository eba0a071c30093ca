"""``trilemma models [MODEL…]``: the model catalogue, and what one model is made of."""

from __future__ import annotations

import argparse
import json

from trilemma.cli.arguments import add_models_dir, add_output_arguments
from trilemma.cli.output import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="*", help="catalogue name, hub id, config.json, folder, *.safetensors or *.gguf"
    )
    add_models_dir(parser)
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.model:
        return _catalogue(as_json=arguments.json)
    from trilemma.models.resolve import load_model
    from trilemma.report.models import model_document, render_model

    models = [load_model(name, models_dir=arguments.models) for name in arguments.model]
    if arguments.json:
        documents = [model_document(model) for model in models]
        print(_dump(documents[0] if len(documents) == 1 else documents))
    else:
        show("\n\n".join(render_model(model, explain=arguments.explain) for model in models))
    return 0


def _catalogue(*, as_json: bool) -> int:
    from trilemma.models.catalogue import entries

    known = entries()
    if as_json:
        rows = [
            {"name": entry.name, "ids": list(entry.ids), "aliases": list(entry.aliases)} for entry in known.values()
        ]
        print(_dump({"schema": "trilemma/models@1", "models": rows}))
        return 0
    width = max(map(len, known), default=0)
    for entry in known.values():
        print(f"{entry.name:<{width}}  {entry.ids[0] if entry.ids else ''}".rstrip())
    return 0


def _dump(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
