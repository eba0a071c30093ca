"""Files that are none, never end or break off: one line that names the file, exit code 2, at once."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from trilemma import outside_files
from trilemma.cli.main import main
from trilemma.errors import InputError

GPU = "--gpu h100-sxm"
SERVED = f"simulate serving llama-3.1-8b {GPU}"
JOBS = "simulate cluster --nodes 2x8 --jobs"
#: Commands that read a file, ``@``, each by another reader.
READERS = [
    "models @.gguf", f"fit @.json {GPU}", "fit llama-3.1-8b --gpu @.toml", f"fit llama-3.1-8b {GPU} --runs @.csv",
    f"plan llama-3.1-8b {GPU} --trace @.csv", f"check {GPU} --log @.log -- vllm serve meta-llama/Llama-3.1-8B",
    f"check {GPU} -- vllm serve --config @.yaml", "validate @.csv", "settle @.json --prediction @.json",
    "precision gate @.jsonl @.jsonl", f"precision plan llama-3.1-8b {GPU} --plan @.toml", "runs record x --config @.json",
    "export @.json --to vllm -o out", "admission --review @.json", f"{SERVED} --trace @.jsonl", f"{JOBS} @.csv",
    f"{JOBS} philly:10 --topology @.conf", "recommend llama-3.1-8b --serve 512/128 --rate 1 --price @.csv",
]  # fmt: skip


def refused(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    words = [word.replace("@", str(path)) if "@" in word else word for word in command.split()]
    path.parent.mkdir(exist_ok=True)
    code = main(words)
    caught = capsys.readouterr()
    assert code == 2, caught
    assert caught.out == ""
    assert caught.err.count("\n") == 1
    assert len(caught.err) < 500
    return caught.err


@pytest.mark.parametrize("command", READERS)
def test_a_pipe_that_nobody_writes_into_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outside_files, "_WAIT_MS", 5)
    ending = next(word for word in command.split() if word.startswith("@"))[1:]
    os.mkfifo(tmp_path / f"pipe{ending}")
    assert "pipe" in refused(command, tmp_path / "pipe", capsys)


@pytest.mark.parametrize("command", READERS)
def test_a_link_to_itself_and_a_folder_are_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = next(word for word in command.split() if word.startswith("@"))[1:]
    (tmp_path / f"loop{ending}").symlink_to(tmp_path / f"loop{ending}")
    (tmp_path / f"folder{ending}").mkdir()
    refused(command, tmp_path / "loop", capsys)
    refused(command, tmp_path / "folder", capsys)


def test_a_pipe_is_read_once_its_writer_comes(tmp_path: Path) -> None:
    """``trilemma lint <(kubectl get …)``: what writes may take longer than the wait for somebody to write."""
    path, written = tmp_path / "pipe", threading.Event()
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            written.wait(0.3)
            pipe.write(b"kind: Pod\n")

    writer = threading.Thread(target=write)
    writer.start()
    assert outside_files.read_text(path) == "kind: Pod\n"
    writer.join()


def test_what_is_too_large_no_text_or_damaged_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfgood")
    assert outside_files.read_text(path, most_bytes=7) == "good"
    with pytest.raises(InputError, match=r"file is larger than 6 bytes; give another file"):
        outside_files.read_bytes(path, most_bytes=6)
    path.write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"--plan .*file is not UTF-8 text \(byte 2\); give a plan"):
        outside_files.read_text(path, what="--plan", give="give a plan")
    with pytest.raises(InputError, match="cannot be read: not a usable path"):
        outside_files.read_text("a\0b")
    path.write_bytes(gzip.compress(b"whole")[:-4])
    with pytest.raises(outside_files.BROKEN), outside_files.unpacked(path) as file:
        file.read()


@pytest.mark.parametrize(
    ("command", "name", "content", "said"),
    [
        (f"{SERVED} --trace @", "t.csv", b"\x1f\x8b\x08\x00" + bytes(100), "cannot be read as text"),
        (f"{SERVED} --trace @", "t.csv", b"arrival," + b"x" * 200_000, "line 1: it is no row of a table"),
        (f"{JOBS} @", "jobs.csv", b"\x1f\x8b\x08\x00" + bytes(100), "jobs.csv"),
        ("lint @", "a.toml", b"x = " + b"9" * 5000, "damaged TOML"),
    ],
)
def test_content_that_breaks_its_reader_is_refused(
    command: str, name: str, content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    code = main([str(path) if word == "@" else word for word in command.split()])
    caught = capsys.readouterr()
    assert code in (1, 2), caught
    assert said in caught.out + caught.err
