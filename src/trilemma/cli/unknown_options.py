"""What to say of words that a command does not take: the nearest option, ours for an engine's flag, or where they belong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise

from trilemma.ask.options import FIT, options_of
from trilemma.ask.training_options import TRAINING
from trilemma.errors import InputError, nearest, shorten

#: Nouns of a plan whose fields engines' flags set, and the options that set them here under another name.
_FIELDS = ("options", "layout", "draft")
_RATES = ("--rate", "--qps", "--rps", "--request-rate", "--requests-per-second")
_OTHERWISE = {"eager": "eager", "method": "draft", "tokens": "draft", "model": "draft"}


def refusal(parser: argparse.ArgumentParser, unknown: Sequence[str], words: Sequence[str]) -> InputError:
    """The error that names the first of ``unknown``, which are among ``words``, and what would be right."""
    word = next((one for one in unknown if one.startswith("-")), unknown[0])
    if not word.startswith("-"):
        return InputError(
            f"{shorten(word)!r} is one word too many; a name of several words stands in quotes (see {parser.prog} --help)"
        )
    name = word.partition("=")[0].split(maxsplit=1)[0]
    known = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    remedy = (
        _in_quotes(word, known)
        or _cards(unknown, name, known, words)
        or _named_otherwise(name, known, parser)
        or _rate(unknown, name, known)
    )
    if remedy is None:
        said = (_lengths(unknown, name, known), _of_training(name, known, parser), _of_engine(name, known, parser))
        remedy = "; ".join(text for text in said if text is not None)
    if not remedy:
        near = [one for one in known if one.startswith(name)] or nearest(name, known, most=2)
        remedy = f"did you mean {' or '.join(near[:2])}?" if near else "its options are listed by --help"
    return InputError(f"{shorten(name)} is no option of {parser.prog}: {remedy} (see {parser.prog} --help)")


def _in_quotes(word: str, known: Sequence[str]) -> str | None:
    """``'--max-seqs 16'`` as one word: an option and its value in quotes, or options of the other run in words of a command."""
    name, _, value = word.partition(" ")
    if not value.strip() or name not in known:
        return None
    pair = f"{name.lstrip('-').replace('-', '_')}={value.strip()}"
    behind = f"; behind --compare write {shorten(pair)}" if "--compare" in known else ""
    return f"{shorten(word)!r} came as one word, in quotes; write it without them{behind}"


def _cards(unknown: Sequence[str], name: str, known: Sequence[str], words: Sequence[str]) -> str | None:
    """``--gpus 4``, ``--num-gpus=4``, ``--gpu-count 4``: the number of cards stands behind their name."""
    if "--gpu" not in known or name.strip("-") not in ("gpus", "num-gpus", "n-gpus", "gpu-count", "ngpus", "num_gpus"):
        return None
    at = next(at for at, word in enumerate(unknown) if word.startswith(name))
    _, _, count = unknown[at].partition("=")
    count = count or next(iter(unknown[at + 1 :]), "")
    given = [after for word, after in pairwise(words) if word == "--gpu"]
    card = given[-1].partition(":")[0] if given else "h200-sxm"
    if count.isdecimal():
        return f"did you mean --gpu {shorten(card)}:{count}?"
    return f"did you mean --gpu {shorten(count or card, most=40)}?"


def _rate(unknown: Sequence[str], name: str, known: Sequence[str]) -> str | None:
    """``--rate 4``, ``--qps 4``, ``--request-rate=4``: requests a second, where they are drawn at random or called otherwise."""
    ours = {"--arrivals": "poisson:", "--rate": ""}
    flag = next((one for one in ours if one in known), None)
    if flag is None or name not in _RATES:
        return None
    spelled = [part for word in unknown for part in word.split("=", 1)]
    value = shorten(spelled[spelled.index(name) + 1 :][0] if name != spelled[-1] else "4", most=20)
    return f"requests a second are {flag} {ours[flag]}{value} here"


def _named_otherwise(name: str, known: Sequence[str], parser: argparse.ArgumentParser) -> str | None:
    """``--gpu`` where a command takes cards as a word of their own, or all of them but for some."""
    if name != "--gpu" or name in known:
        return None
    if any(str(action.metavar).startswith("G[:N]") for action in parser._actions if not action.option_strings):
        return f"cards are named without it here, such as {parser.prog} h100-sxm:8"
    return "it looks at all cards; keep it to some with --include h100-sxm,l40s" if "--include" in known else None


def _lengths(unknown: Sequence[str], name: str, known: Sequence[str]) -> str | None:
    """``--isl 4096 --osl 1024``, as `fit` takes them, where both are one option."""
    if "--serve" not in known or name not in ("--isl", "--osl"):
        return None
    spelled = [part for word in unknown for part in word.split("=", 1)]
    given = {word: after for word, after in pairwise(spelled) if word in ("--isl", "--osl") and after.isdecimal()}
    lengths = f"{given.get('--isl', '1024')[:9]}/{given.get('--osl', '256')[:9]}"
    return f"lengths of prompt and output are one option here, --serve {lengths}"


def _of_engine(name: str, known: Sequence[str], parser: argparse.ArgumentParser) -> str | None:
    """The option here that says what an engine's flag says, or that it is one of an engine alone."""
    from trilemma import engines

    for engine in engines.readable():
        given = engines.get(engine).flags().lookup(name)
        if given is None or (f"--{given.flag.name}" != name and name not in given.flag.short):
            continue
        noun, _, field = given.flag.field.partition(".")
        ours = f"--{_OTHERWISE.get(field, field).replace('_', '-')}"
        label = engines.traits_of(engine).label
        if noun in _FIELDS and ours in known:
            return f"what {label} calls so is {ours} here"
        if given.flag.field == "config.model" or parser.prog.split()[-1] == "check":
            return f"a flag of {label} stands behind --, in the engine's own command"
        return f"it is a flag of {label}; to judge a command with it: trilemma check --gpu G:N -- COMMAND"
    return None


def _of_training(name: str, known: Sequence[str], parser: argparse.ArgumentParser) -> str | None:
    """Options of training where serving was asked for, and the choices of an option given as one."""
    if parser.prog.split()[-1] not in ("fit", "plan"):
        return None
    training = options_of(FIT, TRAINING)
    plain = name.lstrip("-").replace("-", "_")
    chosen = next((one.name for one in training.values() if one.choices and plain in map(str, one.choices)), None)
    if plain in training and name.startswith("--") and name not in known:
        return f"it is of training: add --train SEQ, such as --train 4096 {name}"
    if chosen is not None:
        return f"it is a choice of training: --train 4096 --{chosen.replace('_', '-')} {plain}"
    return None
