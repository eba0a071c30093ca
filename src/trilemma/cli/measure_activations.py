"""``trilemma measure activations MODEL``: count what a real Transformers model saves, beside what is predicted."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from trilemma.cli.arguments import add_output_arguments
from trilemma.cli.output import NO, YES, screen_width, show
from trilemma.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name or config.json of a Transformers model")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="layers of the small model (default 2)")
    parser.add_argument("--hidden", type=int, default=256, metavar="N", help="about its hidden size (default 256)")
    parser.add_argument("--seq", type=int, default=256, metavar="N", help="tokens of a sequence (default 256)")
    parser.add_argument("--micro-batch", type=int, default=2, metavar="N", help="sequences (default 2)")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--recompute", choices=("none", "full"), default="none", help="full checkpoints every layer")
    parser.add_argument(
        "--fake", action="store_true", help="the whole model without data: no memory needed, the causal mask not built"
    )
    parser.add_argument(
        "--bar", type=float, default=0.01, metavar="SHARE", help="exit 1 beyond this relative error (default 0.01)"
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    for name in ("layers", "hidden", "seq", "micro_batch"):
        value = getattr(arguments, name)
        if not 1 <= value <= 2**20:
            raise InputError(f"--{name.replace('_', '-')} {value} is out of range; give a whole number of at least 1")
    if not 0 <= arguments.bar <= 1:
        raise InputError(f"--bar {arguments.bar} is out of range; give a share such as 0.01")
    from trilemma.measured.activations.judge import check_activations
    from trilemma.report.activations import check_document, render_check

    name, config = config_of(arguments.model)
    check = check_activations(
        config,
        micro_batch=arguments.micro_batch,
        seq=arguments.seq,
        dtype=arguments.dtype,
        attention=arguments.attention,
        checkpointed=arguments.recompute == "full",
        fake=arguments.fake,
        layers=arguments.layers,
        hidden=arguments.hidden,
        name=name,
    )
    if arguments.json:
        print(json.dumps(check_document(check), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show(render_check(check, explain=arguments.explain, width=screen_width()))
    return YES if abs(check.error) <= arguments.bar else NO


def config_of(name: str) -> tuple[str, dict[str, Any]]:
    """The configuration that a path or a spelling of a catalogue name means."""
    from trilemma.models import catalogue
    from trilemma.models.documents import read_json
    from trilemma.models.resolve import resolve_name

    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        return name, read_json(path / "config.json" if path.is_dir() else path)
    entry, _ = resolve_name(name)
    return entry, catalogue.config(entry)
