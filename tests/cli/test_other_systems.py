"""Windows and macOS as far as Linux can play them: modules and functions that are missing there, code pages, their paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trilemma
from trilemma.cli.main import main
from trilemma.hardware import catalogue
from trilemma.models import resolve

SOURCE = Path(trilemma.__file__).parents[1]
#: Modules of POSIX alone, and names of `os` that Windows or macOS lack.
_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "spwd", "crypt", "syslog", "posix_ipc")
_NAMES = (
    "sched_getaffinity", "sched_setaffinity", "fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "killpg",
    "getpgid", "setsid", "mkfifo", "chown", "fchmod", "statvfs", "getloadavg", "wait4", "O_NOFOLLOW", "O_NONBLOCK",
)  # fmt: skip
_THERE = f"""
import os, sys
for name in {_MODULES!r}:
    sys.modules[name] = None  # an import of it fails
import subprocess, multiprocessing, asyncio  # of Python's own, which on each system do without what it lacks
for name in {_NAMES!r}:
    if hasattr(os, name):
        delattr(os, name)
"""
_EVERY_MODULE = """
import importlib, pkgutil, trilemma
absent = set()
for found in pkgutil.walk_packages(trilemma.__path__, "trilemma.", onerror=lambda name: None):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        if (error.name or "").split(".")[0] not in EXTRAS:
            raise
print("all")
"""
#: Packages that extras bring.
_EXTRAS = {
    "torch", "transformers", "fastapi", "uvicorn", "starlette", "pyarrow", "vl_convert", "lightning", "matplotlib", "gguf",
    "psycopg", "compressed_tensors", "torchao", "huggingface_hub", "aiconfigurator_core", "safetensors",
}  # fmt: skip


def python(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )  # fmt: skip


def asked(*words: str) -> str:
    return f"from trilemma.cli.main import main; sys.exit(main({list(words)!r}))"


@pytest.mark.slow
def test_every_module_is_imported_without_what_only_linux_has() -> None:
    done = python(f"{_THERE}\nEXTRAS = {_EXTRAS!r}\n{_EVERY_MODULE}")
    assert done.stdout.strip() == b"all", done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("fit", "qwen3-8b", "--gpu", "h100-sxm"),
        ("plan", "qwen3-8b", "--gpu", "l40s:1", "--serve", "512/64"),
        ("check", "--gpu", "rtx-4090", "--", "llama-server", "-m", "C:\\models\\Qwen3-8B-Q4_K_M.gguf"),
        ("here", "--json"),
        ("doctor", "--json"),
    ],
)
def test_commands_answer_without_what_only_linux_has(words: tuple[str, ...]) -> None:
    done = python(f"{_THERE}\n{asked(*words)}")
    assert done.returncode in (0, 1), done.stderr.decode()
    assert done.stdout.strip()


@pytest.mark.parametrize("page", ["cp1252", "cp437", "cp936", "ascii"])
def test_screens_are_written_in_any_code_page(page: str) -> None:
    """A console of Windows shows some hundred signs: what it lacks is replaced, nothing is refused."""
    done = python(f"import sys; {asked('fit', 'qwen3-8b', '--gpu', 'h100-sxm')}", PYTHONIOENCODING=page, PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr.decode()
    assert "qwen3-8b on 1 x H100" in done.stdout.decode(page)


@pytest.mark.slow
def test_no_file_is_read_in_the_systems_code_page(tmp_path: Path) -> None:
    """Python 3.10's warning of PEP 597, as an error: every file is opened in a stated encoding."""
    script = tmp_path / "train.py"
    script.write_text("# größe\nimport torch\ntorch.cuda.is_fp8_supported(0)\n", encoding="utf-8")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", "hidden_size": 64}), encoding="utf-8")
    options = ("-X", "warn_default_encoding", "-W", "error::EncodingWarning:trilemma")
    for words in (
        ("plan", "qwen3-8b", "--gpu", "l40s:1", "--serve", "512/64"),
        ("lint", str(script)),
        ("diagnose", str(script)),
        ("hardware", "h100-sxm", "--explain"),
        ("runs", "list", "--ledger", str(tmp_path / "none.db")),
        ("export", str(config), "--to", "vllm", "-o", str(tmp_path / "out")),
    ):
        done = python(f"import sys; {asked(*words)}", *options)
        assert done.returncode in (0, 1, 2), (words, done.stderr.decode())
        assert b"EncodingWarning" not in done.stderr


@pytest.mark.parametrize(
    "path", ["C:\\models\\qwen", "D:/models/qwen", "\\\\nas\\models\\qwen", "models\\qwen", ".\\qwen"]
)
def test_paths_of_windows_are_paths_there(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve.os, "sep", "\\")
    assert resolve._looks_like_path(path + "\\config.json", Path("nowhere"))
    monkeypatch.setattr(catalogue.os, "sep", "\\")
    assert catalogue._is_path(path + "\\card.toml")


def test_a_card_file_by_its_path_of_windows_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "qwen3-8b", "--gpu", "C:\\cards\\mine.toml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("trilemma: ")
    assert told.count("\n") == 1
