"""A number that cannot be is named by the option that stated it, with what to give."""

from __future__ import annotations

import pytest

from trilemma.cli.main import main

_TRAINED = "plan llama-3.1-8b --gpu h100-sxm:16 --train 8192 --global-batch 128 --tokens 1B"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (f"{_TRAINED} --mtbf -5", "--mtbf -5 is out of range; give GPU-hours above 0, or 0 for no interruptions"),
        (f"{_TRAINED} --restart 0", "--restart 0 is out of range; give seconds above 0"),
        (
            "recommend llama-3.1-8b --serve 100/100 --max-kw 0",
            "--max-kw 0 is a limit that leaves nothing; give a number above 0",
        ),
        (
            "recommend llama-3.1-8b --serve 100/100 --budget-per-hour -1",
            "--budget-per-hour -1 is a limit that leaves nothing",
        ),
    ],
)
def test_options_are_named_as_they_were_stated(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
