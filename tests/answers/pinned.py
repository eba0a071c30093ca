"""What the golden questions print, kept beside the tests: ``python tests/answers/pinned.py`` looks again and writes it down
(``pinned.py fit readings``: of these alone).

A change of figures shows as a change of these files; a commit that makes one says why. One file for each command, the answers
as a person sees them, and the files of exports; then what readers understand (`readings`), figures of plans and kernels to six
digits (`figures`), files, charts and documents (`written`).
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "scripts" / "golden"))

sys.path.insert(0, str(HERE))

from figures import FIGURES  # noqa: E402
from questions import EXPORTS, FILES, questions  # noqa: E402
from readings import READINGS  # noqa: E402
from written import WRITTEN  # noqa: E402

from answers import answer, exported  # noqa: E402

FOLDER = HERE / "pinned"
#: Width of the screen, which answers fill.
SCREEN = {"COLUMNS": "100", "LINES": "40"}
#: First word of a line → what it names → what is written down.
TABLES: dict[str, dict[str, Callable[[], str]]] = {"readings": READINGS, "figures": FIGURES, "written": WRITTEN}
#: Commands that take seconds and are judged by tests of their own.
_LEFT_OUT = ("validate",)


def asked() -> list[str]:
    """Every question as its command line, exports by number and target."""
    lines = [shlex.join(words) for words in questions() if words[0] not in _LEFT_OUT]
    lines += [f"export {number} {target}" for number, (_, targets) in enumerate(EXPORTS) for target in targets]
    return lines + [f"{table} {name}" for table, names in TABLES.items() for name in names]


def found(line: str) -> str:
    """The answer now, in a folder that holds the files of the questions."""
    table, _, name = line.partition(" ")
    if table in TABLES:
        return TABLES[table][name]()
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


def _answers(only: Sequence[str]) -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as work, chdir(work):
        write_files()
        for line in (one for one in asked() if not only or one.split()[0] in only):
            yield line, plain(found(line))


def plain(text: str) -> str:
    """Trailing blanks are no answer."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")


def main() -> None:
    os.environ |= SCREEN
    texts: dict[str, list[str]] = defaultdict(list)
    for line, text in _answers(only := sys.argv[1:]):
        texts[line.split()[0]].append(f"$ trilemma {line}\n{text}\n")
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        if not only:
            path.unlink()
    for command, blocks in texts.items():
        (FOLDER / f"{command}.txt").write_text("\n".join(blocks), encoding="utf-8")
    print(f"{sum(map(len, texts.values()))} answers written to {FOLDER}")


if __name__ == "__main__":
    main()
