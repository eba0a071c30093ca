"""Hostile names, written for spreadsheets, Prometheus, browsers and schedulers of clusters: words stay words."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shlex
import shutil
from pathlib import Path

import pytest
from test_hostile_exports import ATTACKS, PAYLOADS, TEXTS, nothing_foreign_runs, tools_in
from test_hostile_pages import MARKS, Skeleton

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.report.page import answer_page
from trilemma.report.runs_export import as_csv, as_openmetrics
from trilemma.runs.run import LedgerRun

#: What a spreadsheet takes for a formula, what ends a cell, a label or a line.
CELLS = (
    "=1+1",
    "+1",
    "-1",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    ',"x',
    '"} 1\nfoo 1',
    "a\nb",
    "\\",
    '\\"',
    "# EOF",
    "\x85",
    "{a=b}",
)
LABEL = r'"(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"[a-zA-Z_][a-zA-Z0-9_]*\{{name={LABEL},model={LABEL},gpu={LABEL}\}} \S+ \d+\.\d{{3}}")


def drawn(draw: random.Random, *kinds: tuple[str, ...]) -> str:
    return "".join(draw.choice((draw.choice(draw.choice(kinds)), "n", "r1")) for _ in range(draw.choice((1, 1, 2, 3))))


def test_runs_stay_cells_and_labels() -> None:
    draw, wrote = random.Random(1), 0
    for number in range(ATTACKS):
        words = [drawn(draw, CELLS, PAYLOADS, MARKS) for _ in range(5)]
        try:
            run = LedgerRun(
                name=words[0], model=words[1], gpu=words[2], git=words[3], tags=(words[4],), started_s=float(number),
                ended_s=number + 1.0, figures={"mfu": 0.4, words[4]: 1.0},
            )  # fmt: skip
        except InputError:
            continue
        wrote += 1
        head, cells = list(csv.reader(io.StringIO(as_csv([run]))))
        assert len(head) == len(cells) == 12
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells), words
        *lines, end, last = as_openmetrics([run]).split("\n")
        assert (end, last) == ("# EOF", "")
        for line in lines:
            assert line.startswith("# TYPE trilemma_run_") or SAMPLE.fullmatch(line), (words, line)
    assert wrote >= ATTACKS // 4


def test_pages_of_answers_hold_words_as_text() -> None:
    draw = random.Random(2)
    plain = Skeleton(
        answer_page(screen="t\nv\n\nr", explained="e", document='{"a": 1}', yes=True, chart=None, asked="q")
    )
    for _ in range(ATTACKS):
        word = drawn(draw, MARKS, PAYLOADS, TEXTS)
        line, document = " ".join(word.split()) or "t", json.dumps({word: word})
        found = Skeleton(
            answer_page(
                screen=f"{line}\n{line}\n\n{word}.",
                explained=f"{word}!",
                document=document,
                yes=True,
                chart=None,
                asked=f"q {word}",
            )
        )
        assert found.tags == plain.tags, word
        assert [json.loads(one) for one in found.scripts] == [{word: word}]


def test_clusters_for_schedulers_hold_names_as_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw, tools, wrote = random.Random(3), tools_in(tmp_path / "tools"), 0
    for number in range(max(8, ATTACKS // 3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        hostile = drawn(draw, PAYLOADS, TEXTS, MARKS).encode("utf-8", "replace").decode()
        at = draw.choice(("queue", "node", "rack", "job"))
        names = {
            one: hostile if one == at else usual
            for one, usual in {"queue": "q", "node": "n", "rack": "r", "job": "j"}.items()
        }
        rows = {
            "queues": {"queue": names["queue"], "nominal": "8"},
            "nodes": {"name": names["node"], "gpus": "8", "rack": names["rack"]},
            "jobs": {"job": names["job"], "submit_s": "0", "duration_s": "10", "gpus": "8", "queue": names["queue"]},
        }
        words = []
        for name, row in rows.items():
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([list(row), list(row.values())])
            words += [f"--{name}", str(folder / f"{name}.csv")]
        out = folder / "out"
        code = main(["simulate", "cluster", *words, "--export", str(out)])
        shown = capsys.readouterr()
        assert code in (0, 2), (hostile, shown.err)
        assert all(sign.isprintable() or sign == "\n" for sign in shown.out + shown.err), hostile
        if not out.is_dir():
            continue
        wrote += 1
        for line in (out / "topology.conf").read_text().splitlines() if (out / "topology.conf").exists() else ():
            assert line.startswith("# ") or len(shlex.split(line)) == 2, (hostile, line)
        nothing_foreign_runs(out, tools)
        shutil.rmtree(folder)
    assert wrote >= 2
