"""Hostile names in charts, pages of notebooks and lines of the terminal: no foreign tag, attribute, script or escape sequence."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
from test_hostile_exports import ATTACKS, PAYLOADS, TEXTS

from trilemma import compare, fit, plan
from trilemma.ask.answers import Answer
from trilemma.cli.main import main
from trilemma.report.charts import comparison_chart, estimate_chart, pareto_chart, training_chart
from trilemma.report.charts.write import page, printable

#: What HTML, a script element, JSON and expressions of Vega read as more than text.
MARKS = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "</title><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "&#60;b&#62;",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "\\u003c/script\\u003e",
    "]]>",
    "<a href=javascript:alert(1)>x</a>",
    "datum.x) || alert(1) || (0",
    "\u2028alert(1)\u2029",
    "\\",
    "\ud800",
    "\udfff\ud800",
    "\x00",
    "\x1b]0;title\x07",
    "\u202e",
    "\u200b",
    "{{constructor.constructor('alert(1)')()}}",
    "</pre></div><iframe src=//x>",
    "%3Cscript%3E",
    "\x1b[2J\x1b[31m",
    "\r\nX: y",
    "\t",
)


class Skeleton(HTMLParser):
    """Tags with their attributes in order, and what stands in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[Any, ...]]] = []
        self.scripts: list[str] = []
        self._in: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        self._in = tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", ()))
        self._in = None

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", (data,)))


def hostile(draw: random.Random) -> str:
    marks = draw.choice((MARKS, MARKS, PAYLOADS, TEXTS))
    return "".join(draw.choice((draw.choice(marks), "qwen3-8b", " ")) for _ in range(draw.choice((1, 2, 3))))


@cache
def answers() -> dict[str, Any]:
    load = {"isl": 1000, "osl": 200}
    return {
        "fit": fit("llama-3.1-8b", "h100-sxm", concurrency=8, **load),
        "train": fit("llama-3.1-8b", "h100-sxm:8", train=4096, global_batch=64),
        "plan": plan("llama-3.1-8b", "h100-sxm:2", tpot=30, ttft=2000, **load),
        "compare": compare("llama-3.1-8b", ["h100-sxm", "l40s"], **load),
    }


def renamed(answer: Any, name: str) -> Any:
    """``answer`` to a question whose model and card are called ``name``."""
    asked = answer.question
    card = replace(asked.cluster.accelerator, name=name)
    cluster = replace(asked.cluster, accelerator=card)
    return replace(answer, question=replace(asked, model=replace(asked.model, name=name), cluster=cluster))


def drawn(kind: str, name: str) -> dict[str, Any]:
    answer = answers()[kind]
    if kind == "fit":
        one = renamed(answer, name)
        return estimate_chart(one, one.question.cluster.accelerator)
    if kind == "train":
        one = renamed(answer, name)
        return training_chart(one, one.question.cluster.accelerator, ())
    if kind == "plan":
        card = replace(answer.cluster.accelerator, name=name)
        return pareto_chart(
            answer.result, model=name, cluster=replace(answer.cluster, accelerator=card), unlimited=None
        )
    return comparison_chart(answer, model=name)


@pytest.mark.parametrize("kind", ["fit", "train", "plan", "compare"])
def test_pages_hold_names_as_text_alone(kind: str) -> None:
    draw = random.Random(kind)
    plain = Skeleton(page(printable(drawn(kind, "name")), "0"))
    for _ in range(ATTACKS):
        name = hostile(draw)
        spec = printable(drawn(kind, name))
        text = page(spec, "0")
        text.encode()
        found = Skeleton(text)
        assert found.tags == plain.tags, name
        assert len(found.scripts) == 2
        assert not re.search(r"[<>\u2028\u2029\x00-\x08\x0b-\x1f]", found.scripts[1]), name
        told, _, rest = found.scripts[1].partition("vegaEmbed('#chart', ")[2].partition(', {"renderer"')
        assert json.loads(told) == json.loads(json.dumps(spec)), name
        assert rest.endswith(".catch(console.error);")


@pytest.mark.parametrize("kind", ["fit", "train"])
def test_pages_of_notebooks_hold_names_as_text_alone(kind: str) -> None:
    draw = random.Random(kind)
    plain = set(Skeleton(Answer._repr_html_(renamed(answers()[kind], "name"))).tags)
    for _ in range(ATTACKS):
        found = Skeleton(renamed(answers()[kind], hostile(draw))._repr_html_())
        assert set(found.tags) <= plain  # with their attributes


#: Commands in which one word is the attacker's: a name, a value, a path.
ASKED = (
    "fit X --gpu h100-sxm",
    "fit qwen3-8b --gpu X",
    "fit qwen3-8b --gpu h100-sxm --precision X",
    "fit qwen3-8b --gpu h100-sxm --engine X",
    "fit qwen3-8b --gpu h100-sxm --kv-dtype X",
    "fit qwen3-8b --gpu h100-sxm --network X",
    "fit qwen3-8b --gpu h100-sxm --draft X",
    "fit qwen3-8b --gpu h100-sxm --chart X",
    "fit qwen3-8b --gpu h100-sxm --prefill X --decode 1xTP1",
    "fit qwen3-8b --gpu h100-sxm X",
    "fit qwen3-8b --gpu h100-sxm --train 4096 --global-batch 8 --optimizer X",
    "plan qwen3-8b --gpu h100-sxm:1 --serve X",
    "plan qwen3-8b --gpu h100-sxm:1 --serve 100/10 --pools X",
    "compare qwen3-8b --gpu X --gpu l40s",
    "models X",
    "hardware X",
    "formats X",
    "check --gpu l40s --log X",
    "check --gpu l40s -- vllm serve X",
    "check --gpu l40s -- vllm serve Qwen/Qwen3-8B --dtype X",
    "check --gpu l40s -- X",
    "upgrade --from X --to 0.33 --gpu l40s -- vllm serve Qwen/Qwen3-8B",
    "export X --to vllm -o out",
    "validate X",
    "diagnose X",
    "precision plan X --gpu l40s",
    "precision export qwen3-8b --preset X --to vllm",
    "precision X",
    "X",
    "--X",
    "completion X",
    "simulate serving X --gpu l40s --requests 2",
)


@pytest.mark.parametrize("asked", ASKED)
def test_a_hostile_word_is_refused_in_one_printable_line(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(asked)
    for _ in range(max(2, ATTACKS // 8)):
        word = hostile(draw).replace("qwen3-8b", "q")
        words = [one.replace("X", word) for one in asked.split()]
        code = main(words)
        shown = capsys.readouterr()
        assert code in (0, 1, 2), (words, shown.err)
        if code == 2:
            assert shown.err.count("\n") == 1, (words, shown.err)
            assert len(shown.err) < 1000
        assert all(sign.isprintable() or sign == "\n" for sign in shown.err), (words, shown.err)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown.out), words
