"""``trilemma precision export MODEL --preset P --to TARGET``: a plan as the file that a toolkit or an engine reads."""

from __future__ import annotations

import argparse
from pathlib import Path

from trilemma.cli.arguments import add_model_arguments
from trilemma.cli.output import YES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--preset", metavar="NAME", help="a named plan: fp8, w4a16, layered, q4_k_m, …")
    which.add_argument("--plan", metavar="FILE", help="a plan file, or what `precision plan --json` printed")
    parser.add_argument(
        "--to", metavar="TARGET", required=True,
        help="compressed-tensors, llm-compressor, autoround, modelopt, torchao, bitsandbytes, llama-quantize, vllm, sglang",
    )  # fmt: skip
    parser.add_argument("--kv-dtype", metavar="FORMAT", help="format of the KV cache (default: the plan's)")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder to write into (default: print)")


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from trilemma.models.resolve import load_model
    from trilemma.precision.export import modules_of, write_export
    from trilemma.precision.export.writers import export_text
    from trilemma.precision.presets import file_plan, preset_plan

    model = load_model(arguments.model, models_dir=arguments.models)
    plan = preset_plan(model, arguments.preset) if arguments.preset else file_plan(model, arguments.plan)
    if arguments.kv_dtype:
        plan = replace(plan, kv_cache=arguments.kv_dtype)
    modules = modules_of(plan)
    if arguments.output:
        print(write_export(modules, arguments.to, Path(arguments.output)))
    else:
        print(export_text(modules, arguments.to)[1], end="")
    return YES
