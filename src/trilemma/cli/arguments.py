"""Flags of the command line from the table of options, and the nouns that commands without a question of their own read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.ask import reading
from trilemma.ask.options import FIT, GPUS, OPTIONS, Option, options_of
from trilemma.errors import InputError

if TYPE_CHECKING:
    from trilemma.hardware.cluster import Cluster
    from trilemma.plans import Plan
    from trilemma.search.precisions import WeightPrecision
    from trilemma.workloads import Serving

#: Readers whose errors argparse tells with the flag before them; the others are told where the option is used.
_TYPED = (
    reading.whole_number, reading.number, reading.milliseconds, reading.hours, reading.free_gib, reading.word,
)  # fmt: skip


def flag_type(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    """A reader as argparse wants it."""

    def typed(text: str) -> Any:
        try:
            return read(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


whole_number = flag_type(reading.whole_number)
whole_or_none = flag_type(reading.whole_or_none)
number = flag_type(reading.number)
word = flag_type(reading.word)


class Once(argparse.Action):
    """Stores a value and refuses a second one: the last of several would win without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - the signature is argparse's
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            raise InputError(f"{option_string} is given twice; name one, or use trilemma compare for several")
        setattr(namespace, self.dest, values)


def add_options(
    parser: argparse._ActionsContainer,
    question: str,
    group: str | None = None,
    *,
    title: str | None = None,
    table: tuple[Option, ...] = OPTIONS,
) -> None:
    """The flags of ``question``: those of ``group`` under a ``title``, or those without a group."""
    container: argparse._ActionsContainer = parser.add_argument_group(title or group) if group else parser
    for option in options_of(question, table).values():
        if option.group == (group or "") and question not in option.python_only:
            add_option(container, option, required=question in option.required_of)


def add_named(parser: argparse._ActionsContainer, question: str, *names: str) -> None:
    """Single flags of ``question``."""
    known = options_of(question)
    for name in names:
        add_option(parser, known[name])


def add_option(container: argparse._ActionsContainer, option: Option, *, required: bool = False) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in (*option.aliases, option.name)]
    if option.maybe:
        container.add_argument(*flags, action=argparse.BooleanOptionalAction, default=None, help=option.help)
        return
    if option.read is reading.truth:
        container.add_argument(*flags, dest=option.name, action="store_true", help=option.help)
        return
    more: dict[str, Any] = {"metavar": option.metavar} if option.metavar else {}
    if option.read in _TYPED:
        more["type"] = flag_type(option.read)
    if option.choices is not None:
        more["choices"] = option.choices
        more |= {"type": int} if isinstance(option.choices[0], int) else {}
    if option.once:
        more["action"] = Once
    if required:
        more["required"] = True
    container.add_argument(*flags, dest=option.name, default=option.default, help=option.help, **more)


def given(arguments: argparse.Namespace, question: str, table: tuple[Option, ...] = OPTIONS) -> dict[str, Any]:
    """What a command line says of the options of ``question``, as keywords of its function."""
    return {name: getattr(arguments, name) for name in options_of(question, table) if hasattr(arguments, name)}


def add_output_arguments(parser: argparse.ArgumentParser, *, page: bool = False) -> None:
    """``page``: what the command prints goes through `trilemma.cli.output.tell`, which can write it as a page too."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    group.add_argument("--explain", action="store_true", help="show formula, inputs and source of each line")
    if page:
        group.add_argument(
            "--report", metavar="FILE.html", help="write the answer as one page to send to a colleague, too"
        )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="catalogue name, hub id, config.json, folder, *.safetensors or *.gguf"
    )
    add_models_dir(parser)


def add_models_dir(parser: argparse.ArgumentParser) -> None:
    add_named(parser, FIT, "models")


def add_cluster_arguments(
    parser: argparse.ArgumentParser, *, required: bool = True, several: bool = False, host: bool = False
) -> None:
    """``several`` candidates; ``host``: the command uses the memory around the cards."""
    group = parser.add_argument_group("GPUs")
    text = "accelerator and how many, such as h200-sxm:8; a catalogue name, an accelerator file, or auto"
    if several:
        group.add_argument(
            "--gpu", metavar="G[:N]", action="append", required=required, help=f"{text}; give it once per candidate"
        )
    else:
        group.add_argument("--gpu", metavar="G[:N]", required=required, action=Once, help=text)
    add_named(group, FIT, *(option.name for option in GPUS), *(("host",) if host else ()))


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, FIT, "layout")


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, FIT, "workload")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, FIT, "engine")


def command_words(arguments: argparse.Namespace, example: str) -> list[str]:
    """The engine's command that stands after ``--``."""
    words: list[str] = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise InputError(f"no engine command given; put it after --, such as {example}")
    return words


def add_command_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- ENGINE COMMAND…", help="as you would run or deploy it"
    )


def read_weights(arguments: argparse.Namespace, accelerator: Any) -> WeightPrecision:
    """The model that the arguments name with its weights as published, or as ``--precision`` asks for them."""
    from trilemma.ask.nouns import weights_of

    return weights_of(arguments.model, accelerator, precision=arguments.precision, models=arguments.models)


def read_cluster(arguments: argparse.Namespace) -> Cluster:
    """The cluster that ``--gpu`` names, of one kind of cards, in the shape that the other flags give it."""
    from trilemma.ask.nouns import cluster_of
    from trilemma.ask.questions import named_cards

    return cluster_of(named_cards(arguments.gpu), SimpleNamespace(**vars(arguments)))


def read_workload(arguments: argparse.Namespace) -> Serving:
    from trilemma.ask.nouns import workload_of
    from trilemma.ask.options import settled

    return workload_of(settled(FIT, given(arguments, FIT)))


def read_plan(
    arguments: argparse.Namespace, *, gpus: int, context: int | None, quantization: str | None = None
) -> Plan:
    """One plan of one engine from layout and engine options."""
    from trilemma.ask.nouns import plan_of
    from trilemma.ask.options import settled

    return plan_of(settled(FIT, given(arguments, FIT)), gpus=gpus, context=context, quantization=quantization)
