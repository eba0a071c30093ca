"""Commands: flags and values that their engine's version refuses, lost or never had, and programs that are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trilemma import engines
from trilemma.commands.bare_json import quoted
from trilemma.commands.containers import ContainerRun
from trilemma.commands.shell_words import split_commands
from trilemma.diagnosis.findings import Finding, Severity
from trilemma.engines.extract import extract, in_image
from trilemma.engines.training import read_training, trainable
from trilemma.errors import InputError, PlanWarning, with_flags
from trilemma.formats import catalogue as formats
from trilemma.linting.facts import facts as lint_facts
from trilemma.linting.said import said
from trilemma.models.resolve import load_model, resolve_name

#: Codes of warnings that a linter tells, and how grave they are; others are of estimates alone.
_TOLD: dict[str, Severity] = {
    "refused-flag": "error", "stray-word": "error", "refused-value": "error", "removed-flag": "error", "removed-value": "error",
    "newer-flag": "warning", "unknown-flag": "warning", "unknown-value": "warning", "replaced-value": "warning",
    "deprecated-flag": "context", "redundant-flag": "context",
}  # fmt: skip
_MOST_COMMANDS = 2000
#: ``--port <port of the leader>``: what a reader is to write there.
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w -]{0,60}>")
#: How the flags of a script of one's own are told of.
_OWN_SCRIPT = "this script's "
_ELSEWHERE = re.compile(r"is no(?:t a)? file|does not exist|unknown model")
_BLOCK_LINES = 100


def findings(file: str, text: str) -> Iterator[Finding]:
    """Of a shell script, a line, or whatever holds commands."""
    lines = text.splitlines()
    yield from _of_shell(file, lines)
    found: dict[str, None] = {}
    for block in _blocks(lines):
        to_be_filled = _PLACEHOLDER.search(block) is not None
        for words in split_commands(quoted(block)):
            if len(words) > 1 and len(found) < _MOST_COMMANDS and (key := "\0".join(words)) not in found:
                found[key] = None
                told = of_words(file, words, line=_line_of(lines, words))
                yield from (one for one in told if not (to_be_filled and one.id == "command.refused"))


def _blocks(lines: list[str]) -> Iterator[str]:
    """The text in pieces that the bounds of one command admit, cut where no line is continued."""
    block: list[str] = []
    for line in lines:
        block.append(line)
        if len(block) >= _BLOCK_LINES and not line.rstrip().endswith("\\"):
            yield "\n".join(block)
            block = []
    yield "\n".join(block)


def of_words(file: str, words: Sequence[str], *, line: int | None) -> Iterator[Finding]:
    """Of one command; nothing where no engine is in it."""
    try:
        engine, own = extract(words)
    except InputError:
        return
    yield from _of_engine(file, engine, own, value=" ".join(words)[:160], line=line)


def in_container(file: str, run: ContainerRun) -> Iterator[Finding]:
    """Of what a container of a manifest runs."""
    try:
        found = in_image(run)
    except InputError:
        return
    if found is not None:
        value = " ".join((run.image, *run.entrypoint, *run.command))[:160]
        yield from _of_engine(file, *found, value=value, line=None)


def _of_engine(file: str, engine: str, own: list[str], *, value: str, line: int | None) -> Iterator[Finding]:
    try:
        warnings = (*_warnings(engine, own), *_redundant(engine, own))
    except InputError as error:
        if _is_refusal(with_flags(error), own):
            claim, _, fix = with_flags(error).partition("; ")
            yield said("command.refused", claim, file=file, line=line, value=value, fix=fix or None)
        return
    for one in warnings:
        severity = _TOLD.get(one.code)
        if one.code == "unknown-flag" and one.message.startswith(_OWN_SCRIPT):
            continue  # a script has what flags it likes beside those of its library
        if severity is not None:
            claim, _, fix = one.message.partition("; ")
            yield said(
                f"command.{one.code}", claim, file=file, line=line, value=value, fix=fix or None, severity=severity
            )


def _is_refusal(message: str, own: list[str]) -> bool:
    """Whether a command is wrong, or only not told whole: a model, a number of cards, a variable that the shell fills, a file
    that stands elsewhere. What is wrong names an option of the command, and a value that stands in it."""
    option = message.partition(" ")[0].lstrip("-").partition("=")[0]
    given = any(word.lstrip("-+").partition("=")[0].replace("_", "-") == option.replace("_", "-") for word in own)
    return given and "$" not in message and "shell variable" not in message and not _ELSEWHERE.search(message)


def _warnings(engine: str, own: list[str]) -> tuple[PlanWarning, ...]:
    if engine in trainable():
        return read_training(engine, own).warnings
    return engines.get(engine).read(own).warnings


def _redundant(engine: str, own: list[str]) -> tuple[PlanWarning, ...]:
    """A number type that is the checkpoint's own: engines take that by themselves."""
    if engine in trainable():
        return ()
    command = engines.get(engine).read(own)
    dtype = command.plan.pool.options.dtype
    if dtype not in ("bfloat16", "float16", "bf16", "fp16"):
        return ()
    try:
        entry, scheme = resolve_name(command.model)
    except InputError:
        return ()
    own_type = load_model(entry).dtype.name
    if scheme is not None or own_type != formats.get(dtype).name:
        return ()
    message = (
        f"--dtype {dtype} is what the checkpoint of {entry} is stored in, and the default takes that; leave it out"
    )
    return (PlanWarning(code="redundant-flag", message=message),)


def _of_shell(file: str, lines: list[str]) -> Iterator[Finding]:
    rows = [(re.compile(row["pattern"]), row) for row in lint_facts("lint/apis.toml")["shell"]]
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("#"):
            continue
        for pattern, row in rows:
            if pattern.search(line[:4000]):
                fix = f"{row['fix']} ({row['source']})"
                yield said(
                    "command.no-such-program", row["claim"], file=file, line=number, value=line.strip()[:160], fix=fix,
                    severity=row["severity"],
                )  # fmt: skip


def _line_of(lines: list[str], words: Sequence[str]) -> int | None:
    """The first line that holds the command's first words."""
    for number, line in enumerate(lines, start=1):
        if words[0] in line and words[1] in line:
            return number
    return next((number for number, line in enumerate(lines, start=1) if words[0] in line), None)
