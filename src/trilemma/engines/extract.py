"""Finds the engine's command inside what people paste: containers, shells, launchers, manifests, scripts.

The answer is a word list that keeps what the wrapping said: leading ``NAME=value`` words are the environment, and a
container image without a command of its own stands in the place of the program (``vllm/vllm-openai:v0.19.0 --model …``).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from trilemma.commands import containers, launchers, named_files
from trilemma.commands.shell_arrays import expand_arrays
from trilemma.commands.shell_words import MOST_CHARACTERS, MOST_WORDS, split_writing
from trilemma.engines import readable
from trilemma.engines.programs import image_engine, names_none, programs
from trilemma.engines.training import owner_of, trainable
from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text

MOST_NESTING = 6
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}=.*", re.DOTALL)
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash", "ksh"))
_OPERATORS = frozenset(("&&", "||", "|", ";", "&", "|&"))
#: What is left of a line continuation pasted with quotes: of sh, PowerShell and cmd.
_LINE_ENDS = frozenset(("", "\\", "`", "^"))
_REDIRECTION = re.compile(r"[012&]?>{1,2}(&[012-])?|<{1,3}")
_ARITHMETIC = re.compile(
    r"\$\(\s?expr\s{1,4}(\d{1,9})\s{1,4}(\\?[*/%+-])\s{1,4}(\d{1,9})\s?\)|\$\(\(\s?(\d{1,9})\s?([*/%+-])\s?(\d{1,9})\s?\)\)"
)
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}
_VARIABLE = re.compile(r"\$(?:\{(\w{1,64})(?::?-([^}]*))?\}|\((\w{1,64})\)|(\w{1,64}))")


def extract(argv: Sequence[str], *, pool: str | None = None) -> tuple[str, list[str]]:
    """The engine named in ``argv`` and its own words, wrappers peeled off.

    ``argv`` is a command as words, one string holding it, or a path to a manifest (``*.yaml``) or script (``*.sh``).
    Of several engines in a manifest ``pool`` names the one: its container, its object or the key that holds it.
    The words may begin with ``NAME=value`` and with an image reference in place of the program. Raises `InputError`
    when no engine is found, when it has no reader yet, or when bounds are exceeded.
    """
    words = [str(word) for word in argv]
    if len(words) > MOST_WORDS or sum(map(len, words)) > MOST_CHARACTERS:
        raise InputError(f"a command of more than {MOST_WORDS:,} words or {MOST_CHARACTERS:,} characters is too long")
    if pool is not None:
        found = _of_pool(words, pool)
    else:
        found = _script(words[0], (), 0) if len(words) == 1 and any(map(str.isspace, words[0])) else _first(words)
    if found is None:
        raise InputError(_not_found(words))
    engine, own = found
    if engine not in readable() and engine not in trainable():
        raise InputError(f"commands of {engine} are not read yet; engines read today: {', '.join(readable())}")
    return engine, own


def _not_found(words: Sequence[str]) -> str:
    shown = shorten(" ".join(words[:12]), most=60) or "an empty command"
    if len(words) >= 2 and PurePosixPath(words[0]).name == "vllm":
        return f"vllm {shorten(words[1], most=30)} starts no server; give a vllm serve command"
    return f"no engine command in {shown!r}; give one such as: vllm serve MODEL --tensor-parallel-size 2"


def _first(words: list[str]) -> tuple[str, list[str]] | None:
    """The engine command among words that a shell has split already."""
    return next((found for one in _simple_commands(words) if (found := _find(one, (), 0)) is not None), None)


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    """Words cut at shell operators, redirections and left-over line ends dropped."""
    current: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _OPERATORS:
            yield current
            current = []
        elif redirection := _REDIRECTION.match(word):
            whole = redirection.group() == word
            skip = whole and not word.endswith(("&1", "&2", "&-", "&0"))
            if not whole and word[0] not in "<>&012":
                current.append(word)
        elif word.strip() not in _LINE_ENDS:
            current.append(word)
    yield current


def _find(words: list[str], environment: tuple[str, ...], depth: int) -> tuple[str, list[str]] | None:
    """The engine and its words inside one simple command, or None."""
    if depth > MOST_NESTING:
        raise InputError(f"commands nest deeper than {MOST_NESTING} levels; give the engine's command itself")
    words, environment = _take_environment(words, environment)
    if not words:
        return None
    for wrapper in _WRAPPERS:
        found = wrapper(words, environment, depth)
        if found is not None:
            return found
    return _program(words, environment)


def _take_environment(words: list[str], environment: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Leading assignments, also behind ``env``, ``export`` and ``sudo``, moved to the environment."""
    at = 0
    taken = list(environment)
    while at < len(words):
        if _ASSIGNMENT.fullmatch(words[at]):
            # NPROC_PER_NODE=$count: what came before it is known to the shell then
            taken += _substituted([words[at]], taken) or [words[at]]
        elif PurePosixPath(words[at]).name not in ("env", "sudo", "nohup", "exec", "export", "time", "command"):
            break
        at += 1
    return words[at:], tuple(taken)


def _program(words: list[str], environment: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """The first program in the words: launchers before it (``uv run``, ``srun -n 8``, ``numactl``) need no list."""
    for at in range(len(words)):
        for program in programs():
            if program.starts(words, at):
                if program.launched:  # a trainer may stand behind what starts it: the whole command tells
                    return owner_of(words) or program.engine, [*environment, *_substituted(words, environment)]
                every = (*environment, *(word for word in words[:at] if _ASSIGNMENT.fullmatch(word)))
                return program.engine, [*every, *_substituted(launchers.of_module(words, at), every)]
    owner = owner_of(words)
    return None if owner is None else (owner, [*environment, *_substituted(words, environment)])


def _substituted(words: list[str], environment: Sequence[str]) -> list[str]:
    """``$NAME``, ``${NAME:-default}`` and ``$(NAME)`` replaced where the command itself sets them; others stay, ``$@`` goes."""
    known = dict(word.split("=", 1) for word in environment)

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(3) or match.group(4)
        if name in known:
            return known[name]
        return match.group(2) if match.group(2) is not None else match.group()

    kept = [word for word in words if word not in ("$@", "$*", "${@}") and word.strip() not in _LINE_ENDS]
    return [
        _ARITHMETIC.sub(_computed, _VARIABLE.sub(value, word)) if "$" in word and len(word) < 4096 else word
        for word in kept
    ]


def _computed(match: re.Match[str]) -> str:
    """What ``$(expr A / B)`` or ``$((A * B))`` prints for whole numbers; itself where it divides by zero."""
    left, sign, right = (match.group(at) or match.group(at + 3) for at in (1, 2, 3))
    one, other = int(left), int(right)
    if sign.removeprefix("\\") in "/%" and other == 0:
        return match.group()
    return str(_OPERATIONS[sign.removeprefix("\\")](one, other))


def _shell(words: list[str], environment: tuple[str, ...], depth: int) -> tuple[str, list[str]] | None:
    """``bash -c '…'`` anywhere in the words, which also covers ``ssh host bash -lc '…'``."""
    for at, word in enumerate(words[:-2]):
        if PurePosixPath(word).name in _SHELLS and re.fullmatch(r"-[a-z]{0,6}c", words[at + 1]):
            return _script(words[at + 2], environment, depth)
    return None


def _script(text: str, environment: tuple[str, ...], depth: int) -> tuple[str, list[str]] | None:
    """The first engine command of a script; assignments and exports before it count as its environment."""
    files: dict[str, str] = {}
    without_model = None
    for command, target in split_writing(expand_arrays(text)):
        if target is not None and (lines := named_files.printed(command)) is not None:
            files[target] = lines
            continue
        found = _find(command, environment, depth + 1)
        if found is not None and not names_none(found[1]):
            return found[0], [named_files.held(word, files[word]) if word in files else word for word in found[1]]
        without_model = without_model or found
        rest, taken = _take_environment(command, environment)
        if not rest:
            environment = taken
    return without_model


def _container(words: list[str], environment: tuple[str, ...], depth: int) -> tuple[str, list[str]] | None:
    """``docker run [options] IMAGE [command]`` and its like."""
    run = containers.parse_run(words)
    if run is None:
        return None
    return in_image(run, environment, depth)


def in_image(
    run: containers.ContainerRun, environment: tuple[str, ...] = (), depth: int = 0
) -> tuple[str, list[str]] | None:
    """The engine and its words that a container runs, by its command or by its image; None where it runs none."""
    environment = (*environment, *run.environment)
    image = [run.image] if run.image else []
    inner = [*run.entrypoint, *run.command]
    found = _find(inner, (), depth + 1) if inner else None
    if found is not None:
        engine, own = found
        _check_grant(run)
        own = _substituted(own, environment)
        at = next((at for at, word in enumerate(own) if not _ASSIGNMENT.fullmatch(word)), 0)
        return engine, [*environment, *own[:at], *(image if engine == image_engine(run.image) else []), *own[at:]]
    by_image = image_engine(run.image)
    if by_image is None or run.entrypoint:
        return None
    _check_grant(run)
    return by_image, [*environment, *image, *_substituted(list(run.command), environment)]


def _check_grant(run: containers.ContainerRun) -> None:
    if run.refused:
        raise InputError(
            f"{shorten(run.refused)} grants the engine's container no GPU; give a whole number of at least 1"
        )


def _manifest(words: list[str], environment: tuple[str, ...], depth: int) -> tuple[str, list[str]] | None:
    """A Kubernetes or compose file, alone or behind ``kubectl apply -f`` and ``docker compose -f``; or a shell script."""
    path = _file_argument(words)
    if path is None:
        return None
    return _of_file(path, environment, depth)


def _of_pool(words: list[str], pool: str) -> tuple[str, list[str]] | None:
    path = next((path for one in _simple_commands(words) if one and (path := _file_argument(one)) is not None), None)
    if path is None or path.endswith(".sh"):
        raise InputError(f"--pool {shorten(pool)} chooses an engine of a manifest; name a .yaml file, or leave it out")
    return _of_file(path, (), 0, pool=pool)


def _of_file(
    path: str, environment: tuple[str, ...], depth: int, *, pool: str | None = None
) -> tuple[str, list[str]] | None:
    from trilemma.commands.bounded_yaml import load_all  # the parser of YAML is slow to import

    text, folder = read_text(Path(path)), Path(path).parent
    if path.endswith(".sh"):
        found_here = _script(text, environment, depth)
        return None if found_here is None else (found_here[0], named_files.beside(found_here[1], folder))
    documents = load_all(text, name=path)
    found = in_manifest(documents, environment, depth)
    if not found:
        raise InputError(f"{shorten(path)} names no container that runs an engine; give one with args or command")
    chosen = found if pool is None else [(run, one) for run, one in found if run.is_of(pool)]
    if len(chosen) != 1:
        names = ", ".join(shorten("/".join((*run.within[-1:], run.name)), most=60) for run, _ in found[:5])
        many = f"{len(found)} engines" if pool is None else f"{len(chosen)} engines of {shorten(pool)}"
        raise InputError(f"{shorten(path)} starts {many} ({names}); name one with --pool, or keep one in the file")
    engine, own = chosen[0][1]
    return engine, named_files.mounted(own, documents, folder)


def in_manifest(
    documents: Sequence[Any], environment: tuple[str, ...] = (), depth: int = 0
) -> list[tuple[containers.ContainerRun, tuple[str, list[str]]]]:
    """Every container of parsed documents that runs an engine, with the engine and its words."""
    runs = [(run, in_image(run, environment, depth)) for run in containers.runs_in(documents)]
    found = [(run, (one[0], _with_dollars(one[1]))) for run, one in runs if one is not None]
    # A template may name the image alone beside the container that has the command.
    return [(run, one) for run, one in found if run.command or run.entrypoint] or found


def _with_dollars(words: Sequence[str]) -> list[str]:
    return [word.replace(containers.DOLLAR, "$") for word in words]


def _file_argument(words: Sequence[str]) -> str | None:
    name = PurePosixPath(words[0]).name
    if name in ("kubectl", "oc", "docker-compose", "podman-compose") or list(words[:2]) in (
        ["docker", "compose"], ["podman", "compose"],
    ):  # fmt: skip
        for flag, value in pairwise(words):
            if flag in ("-f", "--filename", "--file"):
                return value
        return next((word.split("=", 1)[1] for word in words if word.startswith(("--filename=", "--file="))), None)
    rest = words[1:] if name in _SHELLS else words
    if len(rest) != 1 or any(program.starts(rest, 0) for program in programs()):
        return None
    return rest[0] if rest[0].endswith((".yaml", ".yml", ".sh")) else None


_Wrapper = Callable[[list[str], tuple[str, ...], int], "tuple[str, list[str]] | None"]
_WRAPPERS: tuple[_Wrapper, ...] = (_manifest, _container, _shell)
