"""The six questions in Python give the figures of the command line to the digit; what is exported is there and is short."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import trilemma as tl
from trilemma.cli.main import main

VLLM = "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 2 --max-model-len 131072"
CASES: dict[str, tuple[list[str], Callable[[], Any]]] = {
    "fit": (
        ["fit", "llama-3.1-70b", "--gpu", "h200-sxm:8", "--isl", "4096", "--osl", "1024", "--concurrency", "64"],
        lambda: tl.fit("llama-3.1-70b", "h200-sxm:8", isl=4096, osl=1024, concurrency=64),
    ),
    "fit that does not": (
        ["fit", "llama-3.1-70b", "--gpu", "rtx-4090:2", "--max-seqs", "8", "--kv-dtype", "fp8", "--eager"],
        lambda: tl.fit("llama-3.1-70b", "rtx-4090:2", max_seqs=8, kv_dtype="fp8", eager=True),
    ),
    "fit of pools": (
        ["fit", "qwen3-32b", "--gpu", "h100-sxm", "--prefill", "2xTP2", "--decode", "1xTP4", "--isl", "4K", "--osl", "512"],
        lambda: tl.fit("qwen3-32b", "h100-sxm", prefill="2xTP2", decode="1xTP4", isl="4K", osl=512),
    ),
    "fit of training": (
        ["fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "8192", "--global-batch", "64", "--zero", "3"],
        lambda: tl.fit("llama-3.1-8b", "h100-sxm:8", seq=8192, global_batch=64, zero=3),
    ),
    "check": (["check", "--gpu", "h100-sxm:8", "--", *VLLM.split()], lambda: tl.check(VLLM, gpu="h100-sxm:8")),
    "plan": (
        ["plan", "llama-3.1-8b", "--gpu", "h100-sxm:2", "--serve", "4096/1024", "--ttft", "1000", "--precision", "fp8,bf16"],
        lambda: tl.plan("llama-3.1-8b", "h100-sxm:2", isl=4096, osl=1024, ttft=1000, precision=["fp8", "bf16"]),
    ),
    "plan of any number": (
        ["plan", "qwen3-8b", "--gpu", "l40s", "--serve", "1024/256", "--rate", "8", "--top", "3"],
        lambda: tl.plan("qwen3-8b", tl.gpu("l40s"), isl=1024, osl=256, rate=8, top=3),
    ),
    "train": (
        ["plan", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "4096", "--global-batch", "64", "--recompute", "none"],
        lambda: tl.train("llama-3.1-8b", "h100-sxm:8", seq=4096, global_batch=64, recompute="none"),
    ),
    "compare": (
        ["compare", "qwen3-8b", "--gpu", "h100-sxm", "--gpu", "l40s:2", "--serve", "1024/256"],
        lambda: tl.compare("qwen3-8b", ["h100-sxm", "l40s:2"], isl=1024, osl=256),
    ),
    "upgrade": (
        ["upgrade", "--from", "0.9", "--to", "0.21", "--gpu", "h100-sxm", "--", "vllm", "serve", "Qwen/Qwen3-8B"],
        lambda: tl.upgrade("vllm serve Qwen/Qwen3-8B", "h100-sxm", old="0.9", new="0.21"),
    ),
}  # fmt: skip


def steady(document: dict[str, Any]) -> dict[str, Any]:
    """Without the seconds that the search itself took."""
    return {key: value for key, value in document.items() if key != "seconds"}


def lines(screen: str) -> list[str]:
    """Without the seconds that the search itself took."""
    return [re.sub(r"in \d+\.\d+ s", "in … s", line) for line in screen.strip().splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_python_and_command_line_are_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, ask = CASES[name]
    at = words.index("--") if "--" in words else len(words)
    answer = ask()
    code = main([*words[:at], "--json", *words[at:]])
    printed = capsys.readouterr().out
    assert steady(json.loads(printed)) == steady(answer.to_dict())
    assert json.loads(answer.to_json()) == answer.to_dict()
    assert answer.fits is (code == 0)
    main(words)
    assert lines(capsys.readouterr().out) == lines(str(answer))
    assert len(repr(answer)) < 300


def test_the_first_lines_of_the_documentation() -> None:
    answer = CASES["fit"][1]()
    assert answer.fits
    assert answer.speed.tpot_s.interval.low < answer.speed.tpot_s.interval.value
    assert tl.plan("llama-3.1-8b", "h100-sxm", isl=512, osl=128, concurrency=4).best.command.startswith("vllm serve ")  # type: ignore[union-attr]
    assert "context of" in CASES["check"][1]().remedies[0].change


def test_everything_exported_is_there_and_nothing_else_is_meant() -> None:
    assert len(set(tl.__all__)) == len(tl.__all__)
    for name in tl.__all__:
        value = getattr(tl, name)
        if name not in ("__version__", "watch_numerics"):
            assert (value.__module__ or "").startswith("trilemma."), name
    assert set(tl.__all__) <= set(dir(tl))
    with pytest.raises(AttributeError, match="estimates"):
        tl.estimates  # noqa: B018


def test_importing_loads_nothing() -> None:
    code = (
        "import sys, trilemma; print(sorted(name for name in sys.modules if name.startswith(('trilemma.', 'numpy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "[]"


def test_nouns_are_as_good_as_words() -> None:
    model, card = tl.load_model("qwen3-8b"), tl.gpu("h100-sxm")
    cluster = tl.Cluster.of(card, 2)
    load = tl.Serving(isl=1024, osl=256, concurrency=16)
    plan = tl.Plan(pools=(tl.Pool(layout=tl.Layout(tp=2), options=tl.ServeOptions(context=1280)),))
    words = tl.fit("qwen3-8b", "h100-sxm:2", isl=1024, osl=256, concurrency=16)
    nouns = tl.fit(model, cluster, workload=load, plan=plan, engine=tl.EngineRef())
    asked = tl.fit(tl.Question(model=model, cluster=tl.Cluster.of(card, 2, gpus_per_node=2), workload=load, plan=plan))
    assert words.speed == nouns.speed == asked.speed
    assert words.to_dict()["memory"] == asked.to_dict()["memory"]
    assert all(len(repr(one)) < 300 for one in (model, cluster, asked.question, words))


def test_a_notebook_shows_the_verdict() -> None:
    fits, fails = CASES["fit"][1](), tl.fit("llama-3.1-70b", "rtx-4090", max_seqs=4)
    assert "FITS" in fits._repr_html_().partition("</strong>")[0]
    assert "DOES NOT FIT" in fails._repr_html_().partition("</strong>")[0]
    assert (
        "&amp;"
        in tl.fit(
            tl.Question(
                model=replace(tl.load_model("qwen3-8b"), name="a & b"),
                cluster=fails.question.cluster,
                workload=tl.Serving(),
                plan=tl.Plan(),
            )
        )._repr_html_()
    )


def test_a_notebook_shows_what_explains_and_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = CASES["fit"][1]()
    folded = answer._repr_html_().partition("<details>")[2]
    assert "sum over tensors of bytes" in folded
    picture = answer.chart()
    assert isinstance(picture, dict)
    assert repr(picture).startswith("<Picture: ")
    assert picture._repr_mimebundle_()["image/svg+xml"].startswith("<svg")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert picture._repr_mimebundle_()["application/vnd.vegalite.v5+json"] == dict(picture)


@pytest.mark.parametrize(
    ("ask", "field", "flag"),
    [
        (lambda: tl.fit("qwen3-8b", "h100-sxm", isl=0), "isl", "--isl"),
        (lambda: tl.fit("qwen3-8b", "h100-sxm", isl=4096, osl=1, context=100), "context", "--context"),
        (lambda: tl.Serving(isl=-1), "isl", "--isl"),
        (lambda: tl.Serving(ttft_ms=0), "ttft_ms", "--ttft"),
        (lambda: tl.Serving(prefix_hit=1.5), "prefix_hit", "--prefix-hit"),
        (lambda: tl.Layout(tp=0), "tp", "--tp"),
        (lambda: tl.TrainingWorkload(seq=1, global_batch=0), "global_batch", "--global-batch"),
        (lambda: tl.Cluster.of(tl.gpu("h100-sxm"), 8, nodes=3), "nodes", "--nodes"),
        (lambda: tl.fit("qwen3-8b", "h100-sxm:8", tp=3), "tp", "--tp"),
    ],
)  # fmt: skip
def test_errors_name_fields_and_the_command_line_names_flags(ask: Callable[[], Any], field: str, flag: str) -> None:
    with pytest.raises(tl.InputError) as caught:
        ask()
    assert field in caught.value.fields
    assert f"{flag} " in caught.value.flags
    assert "--" not in str(caught.value)


def test_unknown_options_are_refused_with_the_nearest() -> None:
    with pytest.raises(tl.InputError, match="max_seq'; did you mean max_seqs"):
        tl.fit("qwen3-8b", "h100-sxm", max_seq=8)


@pytest.mark.parametrize("question", ["fit", "plan"])
def test_every_option_is_a_flag_and_a_keyword(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    from trilemma.ask.options import OPTIONS

    with pytest.raises(SystemExit):
        main([question, "--help"])
    shown = capsys.readouterr().out
    for option in OPTIONS:
        if question in option.of and question not in option.python_only:
            assert f"--{option.name.replace('_', '-')}" in shown
