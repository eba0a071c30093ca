"""What the golden questions print, kept beside the tests: ``python tests/answers/pinned.py`` looks again and writes it down.

A change of figures shows as a change of these files; a commit that makes one says why. One file for each command, the answers
as a person sees them, and the files of exports.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "scripts" / "golden"))

from questions import EXPORTS, FILES, questions  # noqa: E402

from answers import answer, exported  # noqa: E402

FOLDER = HERE / "pinned"
#: Width of the screen, which answers fill.
SCREEN = {"COLUMNS": "100", "LINES": "40"}
#: Commands that take seconds and are judged by tests of their own.
_LEFT_OUT = ("validate",)


def asked() -> list[str]:
    """Every question as its command line, exports by number and target."""
    lines = [shlex.join(words) for words in questions() if words[0] not in _LEFT_OUT]
    return lines + [f"export {number} {target}" for number, (_, targets) in enumerate(EXPORTS) for target in targets]


def found(line: str) -> str:
    """The answer now, in a folder that holds the files of the questions."""
    words = shlex.split(line)
    if words[0] == "export" and len(words) == 3 and words[1].isdecimal():
        return exported(EXPORTS[int(words[1])][0], words[2])
    code, text = answer(words)
    return f"exit {code}\n{text}"


@cache
def kept() -> dict[str, str]:
    """Question → answer as it was written down."""
    blocks: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for block in ("\n" + path.read_text(encoding="utf-8")).split("\n$ trilemma ")[1:]:
            line, _, text = block.partition("\n")
            blocks[line] = text.rstrip("\n")
    return blocks


def write_files() -> None:
    """The files that questions name, into the working folder."""
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")


def _answers() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as work, chdir(work):
        write_files()
        for line in asked():
            yield line, plain(found(line))


def plain(text: str) -> str:
    """Trailing blanks are no answer."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")


def main() -> None:
    os.environ |= SCREEN
    texts: dict[str, list[str]] = defaultdict(list)
    for line, text in _answers():
        texts[line.split()[0]].append(f"$ trilemma {line}\n{text}\n")
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for command, blocks in texts.items():
        (FOLDER / f"{command}.txt").write_text("\n".join(blocks), encoding="utf-8")
    print(f"{sum(map(len, texts.values()))} answers written to {FOLDER}")


if __name__ == "__main__":
    main()
