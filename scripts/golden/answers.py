"""Write the answers to every golden question into a folder: ``answers.py FOLDER [--only COMMAND]``.

A refactoring is judged by two such folders, of the revisions before and after it: ``same_answers.sh`` makes and compares them.
Seconds and digests of the data are left out, since they say nothing of the answer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

from questions import EXPORTS, FILES, questions

from trilemma.cli.main import main

#: What differs between two runs of the same code.
_UNSTEADY = re.compile(
    r'"(?:seconds|data_digest|wall_s)": [^,}\n]+|\b\d+(?:\.\d+)? (?:ms|s) of search|(?<= in )\d+\.\d+ s\b|digest [0-9a-f]+'
)


def answer(words: list[str]) -> tuple[int, str]:
    """Exit code and everything printed, in order."""
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        code = main(words)
    return code, _UNSTEADY.sub("(unsteady)", printed.getvalue() + told.getvalue())


def renderings(words: list[str]) -> list[list[str]]:
    """The question asked for a person and for a program."""
    at = words.index("--") if "--" in words else len(words)
    head, tail = words[:at], words[at:]
    explained = [[*head, "--explain", *tail]] if words[0] in ("fit", "check") else []
    return [words, [*head, "--json", *tail], *explained]


def exported(words: list[str], engine: str) -> str:
    """Every file of an export, one after the other."""
    with contextlib.redirect_stdout(io.StringIO()) as document, contextlib.redirect_stderr(io.StringIO()):
        main([*words, "--json"])
    Path("plan.json").write_text(document.getvalue())
    with tempfile.TemporaryDirectory(dir=".") as folder:
        code, told = answer(["export", "plan.json", "--to", engine, "-o", Path(folder).name])
        text = f"exit {code}\n{told}".replace(Path(folder).name, "FOLDER")
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                text += f"--- {path.relative_to(folder)}\n{path.read_text(encoding='utf-8', errors='replace')}"
    return _UNSTEADY.sub("(unsteady)", text.replace(Path(folder).name, "FOLDER"))


def write(folder: Path, only: str | None) -> int:
    """All answers as ``NNN-command.txt``, named by their place in the list; how many questions were asked."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = 0
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        for name, text in FILES.items():
            Path(name).write_text(text)
        for number, words in enumerate(questions()):
            if only and words[0] != only:
                continue
            texts = []
            for asking in renderings(words):
                code, text = answer(asking)
                texts.append(f"$ trilemma {shlex.join(asking)}\nexit {code}\n{text}\n")
            (folder / f"{number:03}-{words[0]}.txt").write_text("".join(texts))
            asked += 1
        for number, (words, engines) in enumerate(EXPORTS):
            for engine in engines if only in (None, "export") else ():
                (folder / f"export-{number}-{engine}.txt").write_text(exported(words, engine))
                asked += 1
    return asked


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", metavar="COMMAND", help="ask the questions of one command alone")
    arguments = parser.parse_args()
    print(f"{write(arguments.folder.resolve(), arguments.only)} questions answered")
