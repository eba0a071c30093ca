"""``--report``: an answer as one page that holds all of it and fetches nothing."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import trilemma
from trilemma.cli.main import main
from trilemma.report.page import answer_page

FIT = ["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--isl", "1024", "--osl", "256", "--concurrency", "16"]


class Parts(HTMLParser):
    """Tags of a page, and addresses in them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def document_in(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    document: dict[str, object] = json.loads(found.group(1))
    return document


def test_the_page_holds_screen_document_and_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.html"
    assert main([*FIT, "--report", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"report: {file}\n"
    page, answer = file.read_text("utf-8"), trilemma.fit("llama-3.1-8b", "h100-sxm", isl=1024, osl=256, concurrency=16)
    assert document_in(page) == answer.to_dict()
    for line in answer.show(width=120).splitlines()[2:]:
        assert html.escape(line) in page
    parts = Parts()
    parts.feed(page)
    assert all(one.startswith("data:image/svg+xml") for one in parts.addresses)
    assert parts.tags.count("script") == 1
    assert 'class="verdict yes"' in page
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page


def test_a_no_is_told_as_one(tmp_path: Path) -> None:
    file = tmp_path / "no.html"
    assert (
        main(
            [
                "check",
                "--gpu",
                "rtx-4090",
                "--report",
                str(file),
                "--",
                "vllm",
                "serve",
                "meta-llama/Llama-3.1-70B-Instruct",
            ]
        )
        == 1
    )
    assert 'class="verdict no"' in file.read_text("utf-8")


def test_words_from_outside_stay_words() -> None:
    evil = "</script><script>alert(1)</script>"
    page = answer_page(
        screen=f"{evil}\n{evil}\n\n{evil}", explained=evil, document=json.dumps({"a": evil}), yes=True,
        chart={"title": f'" onload="{evil}', "mark": "point", "data": {"values": []}}, asked=evil,
    )  # fmt: skip
    parts = Parts()
    parts.feed(page)
    assert parts.tags.count("script") == 1
    assert document_in(page) == {"a": evil}
    assert 'onload="' not in page


@pytest.mark.parametrize(
    ("name", "said"), [("a.pdf", "a report is a page; give FILE.html"), ("none/a.html", "cannot be written")]
)
def test_a_file_that_cannot_be_written_is_told(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FIT, "--report", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err
