"""Screens of simulations, of the ledger, of facilities, audits and lint fit the window too."""

from __future__ import annotations

import shlex

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.report.tables import display_width

WIDTHS = [80, pytest.param(100, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.slow)]
SCREENS = (
    "simulate serving llama-3.1-8b --gpu h100-sxm --arrivals poisson:6 --isl lognormal:512:0.5 --osl 64 --requests 200"
    " --ttft 500 --tpot 20 --compare 'gpu=h200-sxm max_seqs=64' --load-curve",
    "simulate serving llama-3.1-8b --gpu h100-sxm:3 --arrivals poisson:6 --isl 512 --osl 64 --requests 100 --prefill 1xTP1"
    " --decode 2xTP1",
    "simulate cluster --nodes 8x8:8 --jobs philly:200 --compare fifo,best-fit,+4",
    "facility h100-sxm:64 --watts 540W --rack-kw 40kW --region france",
    "precision recipe llama-3.1-8b --gpu b200-sxm:8 --zero 3",
    "lint scripts tests/data",
    "completion --help", "simulate serving --help", "simulate cluster --help", "measure --help", "measure pilot --help",
    "measure serve --help", "admission --help", "diff --help", "validate --help", "runs --help", "runs tune --help",
    "runs export --help", "recommend --help", "web --help", "doctor --help", "audit --help", "here --help", "facility --help",
)  # fmt: skip


def too_wide(text: str, width: int) -> list[str]:
    """Lines of ``text`` that do not fit and might: an indented command and what is quoted of a file stay whole."""
    wide = [line for line in text.splitlines() if display_width(line) > width and len(line.split()) > 1]
    return [line for line in wide if not line.lstrip().startswith(("|", "trilemma ", "vllm ", "torchrun "))]


def shown(words: list[str], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    try:
        code = main(words)
    except SystemExit as end:  # of --help
        code = int(end.code or 0)
    told = capsys.readouterr()
    assert code in (0, 1), told.err
    return told.out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("words", SCREENS)
def test_no_line_is_longer_than_the_window(
    words: str,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(request.config.rootpath)
    assert not too_wide(shown(shlex.split(words), width, capsys, monkeypatch), width)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("ledger") / "runs.db")
    plans = tl.plan("llama-3.1-8b", "h100-sxm:8", seq=4096, global_batch=64, top=5).plans
    for name, plan, share in (
        ("a-run-with-a-name-that-is-rather-long-as-names-of-runs-are", plans[0], 0.9),
        ("b", plans[1], 0.8),
    ):
        said = plan.to_dict()["speed"]["tokens_per_s_per_gpu"]["value"]
        with tl.record(
            name, ledger=path, model="llama-3.1-8b", estimate=plan, config={"lr": 3e-4, "path": "x" * 60}
        ) as run:
            run.figure(tokens_per_s_per_gpu=share * said, mfu=0.4 * share, step_s=5 / share)
    return path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "words",
    [
        "runs list", "runs show 1", "runs diff 1 2", "runs best --model llama-3.1-8b --figure mfu",
        "runs gate 2 --baseline 1 --figure mfu",
        "runs tune llama-3.1-8b --gpu h100-sxm:8 --seq 4096 --global-batch 64",
    ],
)  # fmt: skip
def test_screens_of_the_ledger(
    words: str, width: int, ledger: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not too_wide(shown([*words.split(), "--ledger", ledger], width, capsys, monkeypatch), width)
