"""Outputs that cannot be written, and names that no system takes: one line, exit code 2, no traceback as the program ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trilemma.cli.main import main

FULL = Path("/dev/full")
SERVED = "simulate serving llama-3.1-8b --gpu h100-sxm --arrivals poisson:4 --isl 64 --osl 8 --requests 5"
FIT = "fit llama-3.1-8b --gpu h100-sxm"


def ran(words: str, redirected: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m trilemma {words} {redirected}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(not FULL.exists(), reason="no disk that is always full")
@pytest.mark.parametrize("words", ["", "formats", "models"])
def test_a_full_disk_behind_the_output_is_told(words: str) -> None:
    done = ran(words, "> /dev/full")
    assert (done.returncode, done.stderr) == (2, "trilemma: the output: No space left on device\n")


@pytest.mark.parametrize("words", ["", "formats"])
@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_fault(words: str, redirected: str) -> None:
    done = ran(words, redirected)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.skipif(not FULL.exists(), reason="no disk that is always full")
@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (f"{SERVED} --per-request", ".csv"),
        (f"{SERVED} --per-request", ".jsonl"),
        ("simulate cluster --nodes 2x8 --jobs philly:10 --per-job", ".csv"),
        (f"{FIT} --report", ".html"),
    ],
)
def test_a_full_disk_behind_a_file_is_told(
    words: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"full{ending}"
    path.symlink_to(FULL)
    assert main([*words.split(), str(path)]) == 2
    assert f"full{ending} cannot be written: No space left on device; give another file\n" in capsys.readouterr().err


@pytest.mark.parametrize("words", [f"{FIT} --models", "recommend llama-3.1-8b --serve 512/128 --rate 1 --models"])
def test_a_name_longer_than_the_system_takes_is_told(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "m" * (os.pathconf("/", "PC_NAME_MAX") + 1)]) == 2
    err = capsys.readouterr().err
    assert "File name too long" in err
    assert err.count("\n") == 1


def test_no_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT.split(), "--runs", ","]) == 2
    assert "--runs ',' names no file" in capsys.readouterr().err
