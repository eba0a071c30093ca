"""``trilemma precision recipe``: what a device and a framework support, in code that exists, and what it saves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from trilemma.cli.arguments import add_cluster_arguments, add_model_arguments, read_cluster
from trilemma.cli.output import NO, YES, screen_width
from trilemma.cli.training_arguments import (
    add_plan_arguments,
    add_training_arguments,
    read_settled,
    read_training_workload,
)
from trilemma.quantities import GIB, counted
from trilemma.report.wrapping import within

if TYPE_CHECKING:
    from trilemma.models.architecture import Model
    from trilemma.precision.recipe import Recipe, Savings

_SEQUENCE, _BATCH = 4096, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    parser.add_argument("--framework", default="te", metavar="te|torchao|megatron|deepspeed", help="whose words to use")
    parser.add_argument(
        "--recipe", metavar="NAME", help="mxfp8, fp8-current, fp8-block, fp8-delayed, nvfp4 (default: the best)"
    )
    parser.add_argument(
        "--rlhf", action="store_true", help="also what stays in FP32 when a policy is trained by reinforcement"
    )
    add_training_arguments(parser)
    add_plan_arguments(parser, settled=False)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.models.resolve import load_model
    from trilemma.precision.recipe import choose, frameworks, misaligned
    from trilemma.report.document import dumps

    model = load_model(arguments.model, models_dir=arguments.models)
    cluster = read_cluster(arguments)
    recipe = choose(cluster.accelerator, arguments.framework, arguments.recipe)
    arguments.engine = arguments.engine or frameworks()[arguments.framework].implementation
    assumed = arguments.seq is None or arguments.global_batch is None
    arguments.seq = arguments.seq or min(_SEQUENCE, model.max_positions or _SEQUENCE)
    arguments.global_batch = arguments.global_batch or max(_BATCH, cluster.gpus)
    saved = _savings(arguments, model, cluster, recipe)
    sides = misaligned(model, recipe, tp=arguments.tp or 1)
    document = _document(recipe, frameworks()[arguments.framework], saved, sides, arguments, assumed)
    print(dumps(document) if arguments.json else _text(document))
    return YES if saved.fits else NO


def _savings(arguments: argparse.Namespace, model: Model, cluster: Any, recipe: Recipe) -> Savings:
    from trilemma.estimate.training import estimate_training
    from trilemma.precision.recipe import savings
    from trilemma.question import Question
    from trilemma.search.training_single import single_training_plan

    workload = read_training_workload(arguments)
    plan = single_training_plan(model, cluster.accelerator, workload, read_settled(arguments), gpus=cluster.gpus)
    return savings(
        lambda one: estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=one)),
        plan,
        recipe.state_in(arguments.framework),
    )


def _document(
    recipe: Recipe, framework: Any, saved: Savings, sides: list[str], arguments: argparse.Namespace, assumed: bool
) -> dict[str, Any]:
    from trilemma.precision.recipe import exponent_limits, reinforcement_facts

    document: dict[str, Any] = {
        "schema": "trilemma/recipe@1",
        "recipe": recipe.name,
        "formats": recipe.formats_in(arguments.framework),
        "why": recipe.why,
        "source": recipe.source_in(arguments.framework),
        "framework": {"name": framework.title, "version": framework.version, "source": framework.source},
        "snippet": recipe.snippets[arguments.framework],
        "align": recipe.align,
        "misaligned": sides,
        "savings": {
            "bf16_bytes": saved.bf16_bytes,
            "recipe_bytes": saved.recipe_bytes,
            "weight_copy_bytes": saved.weight_copy_bytes,
            "bf16_step_s": saved.bf16_step_s,
            "recipe_step_s": saved.recipe_step_s,
            "speed_up": saved.speed_up,
            "product_share": saved.product_share,
            "speed_up_bound": saved.bound,
            "capacity_bytes": saved.capacity_bytes,
            "bf16_fits": saved.bf16_fits,
            "fits": saved.fits,
        },
        "workload": {"seq": arguments.seq, "global_batch": arguments.global_batch, "assumed": assumed},
    }
    if arguments.rlhf:
        facts = reinforcement_facts()
        document["rlhf"] = {
            "fp32": list(facts["fp32"]),
            "exponent_limits": exponent_limits(),
            "source": facts["source"],
        }
    return document


def _room(saved: dict[str, Any]) -> list[str]:
    """Where the state does not fit the card, that first: times of a training that cannot start are no promise."""
    if saved["fits"]:
        return []
    alone = "nor does BF16" if not saved["bf16_fits"] else "in BF16 it would"
    return [
        f"         DOES NOT FIT: the card has {saved['capacity_bytes'] / GIB:,.2f} GiB, {alone}; give more GPUs, --zero 3,"
        " --tp or --recompute full",
    ]


def _text(document: dict[str, Any]) -> str:
    """The words, in the columns that there are, around the snippet, which is there to be copied."""
    head, _, rest = "\n".join(_lines(document)).partition("\n\n")
    snippet = "\n".join(f"    {line}" for line in document["snippet"].splitlines())
    return "\n\n".join([within(head, screen_width()), snippet, within(rest, screen_width())])


def _lines(document: dict[str, Any]) -> list[str]:
    saved, framework = document["savings"], document["framework"]
    lines = [
        f"{document['recipe']} with {framework['name']} {framework['version']}: {document['formats']}",
        f"why      {document['why']}",
        f"gate     {document['source']}",
        "",
        f"memory   {saved['bf16_bytes'] / GIB:,.2f} GiB per GPU in BF16, {saved['recipe_bytes'] / GIB:,.2f} under the recipe,"
        f" of which {saved['weight_copy_bytes'] / GIB:,.2f} are low-precision copies of weights",
        *_room(saved),
        f"time     {saved['bf16_step_s']:,.3f} s a step in BF16, {saved['recipe_step_s']:,.3f} under the recipe:"
        f" {saved['speed_up']:.2f} x",
        f"bound    products that the recipe casts are {saved['product_share']:.0%} of the BF16 step: never more than"
        f" {saved['speed_up_bound']:.2f} x",
        f"shapes   sides of linear layers must be multiples of {document['align']}"
        + (f"; not so: {', '.join(document['misaligned'][:6])}" if document["misaligned"] else ": all are"),
    ]
    load = document["workload"]
    if load["assumed"]:
        lines.append(f"assumed  sequences of {counted(load['seq'], 'token')}, {load['global_batch']:,} a step")
    if "rlhf" in document:
        limits = document["rlhf"]["exponent_limits"]
        lines += [
            "",
            f"FP32     {'; '.join(document['rlhf']['fp32'])}",
            "ranges   exp of a log ratio is finite up to "
            + ", ".join(f"{limit:.2f} in {name}" for name, limit in limits.items()),
        ]
    return lines
