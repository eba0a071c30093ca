"""Pages of the site that are made: from the READMEs and files at the root, the parsers of the commands and the public names."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import trilemma
from trilemma.cli.main import COMMANDS, TRAINING, Parser, build_parser

_ROOT = Path(__file__).parents[2]
#: Files at the root → the page that each becomes; links between them follow.
_PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def made_pages() -> dict[str, str]:
    """Path of a page under the documents → its Markdown."""
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    start, questions = _two_of(readme)
    found = {_PAGES[name]: _linked((_ROOT / name).read_text(encoding="utf-8")) for name in _PAGES}
    found["index.md"] = _linked(start)
    found["questions.md"] = _linked(questions)
    found["reference/commands.md"] = commands_page()
    found["reference/python.md"] = python_page()
    return found


def _two_of(readme: str) -> tuple[str, str]:
    """The start page, without what is for those who work on it, and the page of questions."""
    head, _, rest = readme.partition("\n## Ask\n")
    questions, _, trust = rest.partition("\n## How far to trust it\n")
    trust = trust.partition("\n## Work on it\n")[0]
    more = (
        "\n## Ask\n\n[By task](tasks.md) goes from a need to its commands, [by question](questions.md) lists them all;"
        " [a notebook](notebook.md) shows the same from Python, [the page](web.md) in a browser.\n"
    )
    if not questions or not trust:
        raise SystemExit(
            "README.md has no section `Ask` or `How far to trust it` any more; scripts/site/pages.py cuts it there"
        )
    return f"{head}{more}\n## How far to trust it\n{trust}", f"# By question\n{questions}"


def _linked(text: str) -> str:
    """Links as they are from the folder of the documents."""
    text = re.sub(r"\[docs/([\w-]+)\.md\]", r"[\1]", text).replace("](docs/", "](")
    for name, page in _PAGES.items():
        text = text.replace(f"]({name})", f"]({page})")
    return text.replace("](LICENSE)", "](https://www.apache.org/licenses/LICENSE-2.0)")


def commands_page() -> str:
    """Every command with its options, as ``--help`` says them."""
    parts = [
        "# Commands",
        "Made from the commands themselves. Answers go to stdout; exit codes are 0 yes, 1 no, 2 bad input, 3 a bug of ours.",
        "| command | |\n|---|---|\n"
        + "\n".join(f"| [`{name}`](#{name}) | {_cell(said)} |" for name, (_, said) in COMMANDS.items()),
    ]
    for name, (module, summary) in COMMANDS.items():
        parts.append(f"## {name} {{ #{name} }}\n\n{_sentence(summary)}")
        parts += _forms(name)
        for word, (inner, said) in getattr(importlib.import_module(module), "SUB_COMMANDS", {}).items():
            parser = Parser(prog=f"trilemma {name} {word}")
            importlib.import_module(inner).add_arguments(parser)
            parts.append(f"### {name} {word} {{ #{name}-{word} }}\n\n{_sentence(said)}\n\n{_options(parser)}")
    return "\n\n".join(parts) + "\n"


def _forms(name: str) -> Iterator[str]:
    module = importlib.import_module(COMMANDS[name][0])
    if hasattr(module, "SUB_COMMANDS"):
        return
    yield _options(_of(name, training=False))
    if name in TRAINING:
        yield f"### {name} … --train {{ #{name}-train }}\n\nWith `--train SEQ` the same question of training."
        yield _options(_of(name, training=True))


def _of(name: str, *, training: bool) -> argparse.ArgumentParser:
    for action in build_parser(name, training=training)._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices[name]
            return found
    raise SystemExit(f"{name} has no parser")


def _options(parser: argparse.ArgumentParser) -> str:
    usage = " ".join(
        action.metavar if isinstance(action.metavar, str) else action.dest
        for action in parser._actions
        if not action.option_strings
    )
    formatter = parser._get_formatter()
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help is argparse.SUPPRESS:
            continue
        said = _cell(formatter._expand_help(action) if action.help else "")
        if action.choices and action.metavar is not None:
            said += f" ({', '.join(map(str, action.choices))})"
        rows.append(f"| {_spelt(formatter, action)} | {said} |")
    line = f"`{parser.prog}{' ' + usage if usage else ''}{' [options]' if rows else ''}`"
    return f"{line}\n\n| | |\n|---|---|\n" + "\n".join(rows)


def _spelt(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    names = ", ".join(action.option_strings)
    return "`" + f"{names} {value}".strip().replace("|", r"\|").replace("\n", " ") + "`"


def _cell(text: str) -> str:
    """Text in a cell of a table: no bar splits it, no word of it is an element or emphasis."""
    text = " ".join(text.split())
    return re.sub(r"([|*_<>\[\]])", r"\\\1", text)


def _sentence(text: str) -> str:
    return _cell(text[0].upper() + text[1:] + ".")


#: Groups of the public names.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Questions": ("fit", "check", "plan", "train", "compare", "recommend", "upgrade"),
    "Over time": ("simulate", "simulate_cluster"),
    "Machines, files and runs": (
        "here", "doctor", "diagnose", "lint", "audit", "record", "trainer_callback", "lightning_callback", "watch_numerics",
    ),
    "Nouns": (
        "Question", "Model", "load_model", "Accelerator", "gpu", "Cluster", "Serving", "TrainingWorkload", "Plan", "Pool",
        "Layout", "ServeOptions", "EngineRef", "Draft", "TrainingPlan",
    ),
    "Answers": ("Answer", "Estimate", "Interval"),
    "Errors": ("TrilemmaError", "InputError"),
}  # fmt: skip


def python_page() -> str:
    """Every public name, grouped; names that no group has stand at the end."""
    grouped = {name for names in _GROUPS.values() for name in names}
    rest = tuple(name for name in trilemma.__all__ if name not in grouped and not name.startswith("__"))
    parts = [
        "# Python, in full",
        "The public names of `trilemma`, from the code. [From Python](../python.md) shows them at work.",
    ]
    for title, names in {**_GROUPS, **({"More": rest} if rest else {})}.items():
        parts.append(f"## {title}")
        parts += [f"::: {_home(name)}\n    options:\n      heading: {name}\n{_shown(name)}" for name in names]
    return "\n\n".join(parts) + "\n"


def _home(name: str) -> str:
    found = getattr(trilemma, name)
    return f"{found.__module__}.{found.__qualname__}"


def _shown(name: str) -> str:
    """Of classes the public members too."""
    found = getattr(trilemma, name)
    if not inspect.isclass(found):
        return ""
    return "      members: true\n      filters: ['!^_']\n      heading_level: 3\n      show_root_members_full_path: false\n"
