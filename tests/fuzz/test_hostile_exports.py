"""Documents whose words are hostile, fed to every writer of files: nothing foreign runs, what is written parses.

A word of the document becomes one that a shell, YAML or HTML reads as more than itself; `TRILEMMA_ATTACKS` says how many
such documents each writer is given (default 25; ``TRILEMMA_ATTACKS=2000 python -m pytest tests/fuzz/test_hostile_exports.py``).
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trilemma.cli.main import main

ATTACKS = int(os.environ.get("TRILEMMA_ATTACKS", "25"))
#: Each would leave a file called ran where a shell takes it for more than a word, with nothing but what every shell has.
PAYLOADS = (
    "$(>ran)", "`>ran`", "; >ran ;", "' ; >ran ; '", '" ; >ran ; "', "a\n>ran\n#", "a\r\n>ran\n", "&& >ran &&", "| >ran",
    "$IFS>ran", "\\\n>ran\n", "--flag=$(>ran)", "a b", "#", "!", "*", "~", "''", '"', "\\", "{{ 1 }}", "${x:=$(>ran)}",
    "<(>ran)",
)  # fmt: skip
TEXTS = (
    "key: value", "- item", "[1, 2", "{a: b", "&anchor", "*alias", "!!python/object/apply:os.system [true]", "%YAML 1.1", "---",
    "...",     "'", '"', "a: 'b", "yes", "1e3", "0o17", "null", "\u2028", "\x00", "\x1b[31m", "\ud800", "\u202e",
    "</script><script>alert(1)", "&lt;",
)  # fmt: skip
SERVE = ("--isl", "1000", "--osl", "200", "--concurrency", "4")
TRAIN = ("--train", "4096", "--global-batch", "64")
SHARDED = ("fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--zero", "3", *TRAIN)
WRITERS: dict[str, tuple[str, ...]] = {
    "vllm": ("fit", "qwen3-32b", "--gpu", "h100-sxm:16", "--tp", "8", "--replicas", "2", *SERVE),
    "sglang": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", "--engine", "sglang", *SERVE),
    "tensorrt-llm": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", "--engine", "tensorrt-llm", *SERVE),
    "llama.cpp": ("fit", "qwen3-14b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "--precision", "Q4_K_M", *SERVE),
    "ollama": ("fit", "qwen3-8b", "--gpu", "rtx-4090", "--engine", "ollama", "--precision", "Q4_K_M", *SERVE),
    "lmdeploy": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", "--engine", "lmdeploy", *SERVE),
    "mlx-lm": ("fit", "qwen3-8b", "--gpu", "apple-m3-max", "--engine", "mlx-lm", *SERVE),
    "lm-studio": ("fit", "qwen3-8b", "--gpu", "rtx-4090", "--engine", "lm-studio", "--precision", "Q4_K_M", *SERVE),
    "kubernetes": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", *SERVE),
    "llm-d": ("fit", "qwen3-32b", "--gpu", "h100-sxm:4", "--prefill", "1xTP2", "--decode", "1xTP2", *SERVE),
    "megatron": ("fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", *TRAIN),
    "torchtitan": (*SHARDED, "--engine", "torchtitan", "--precision", "fsdp"),
    "deepspeed": (*SHARDED, "--engine", "deepspeed"),
    "accelerate": (*SHARDED, "--engine", "accelerate"),
}  # fmt: skip
PROGRAMS = (
    "vllm", "python", "python3", "sglang", "trtllm-serve", "llama-server", "docker", "torchrun", "accelerate", "deepspeed", "ray",
    "srun",     "curl", "kubectl", "genai-perf", "aiperf", "guidellm", "scontrol", "hostname", "vllm-router", "sglang-router",
    "ollama", "lms", "lmdeploy", "mlx_lm.server", "mlx_lm.generate",
)  # fmt: skip


def words_of(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all texts of a document; those that are its name for itself aside."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key != "schema":
                yield from words_of(value, (*path, key))
    elif isinstance(node, list):
        for at, value in enumerate(node):
            yield from words_of(value, (*path, at))
    elif isinstance(node, str):
        yield path


def hostile(document: dict[str, Any], places: list[tuple[Any, ...]], draw: random.Random) -> dict[str, Any]:
    """``document`` with a word or two replaced, or a flag added."""
    found = copy.deepcopy(document)
    for place in draw.sample(places, draw.choice((1, 1, 2))):
        node = found
        for key in place[:-1]:
            node = node[key]
        payload = draw.choice(PAYLOADS if draw.random() < 0.7 else TEXTS)
        node[place[-1]] = payload if draw.random() < 0.5 else node[place[-1]] + payload
    pools = found["inputs"]["plan"].get("pools")
    if pools and draw.random() < 0.5:
        extra = pools[0].setdefault("options", {}).setdefault("extra", {})
        extra[draw.choice(("served-model-name", "chat-template", "download-dir", "n-gpu-layers", "create"))] = (
            draw.choice(PAYLOADS)
        )
    return found


def tools_in(folder: Path) -> Path:
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).symlink_to("/bin/true")
    for name in ("dirname", "cat", "head", "mkdir"):
        (folder / name).symlink_to(shutil.which(name) or "/bin/true")
    return folder


def nothing_foreign_runs(folder: Path, tools: Path) -> None:
    """Every script parses and runs without leaving a file of its own; every YAML and JSON file reads."""
    before = sorted(path.name for path in folder.rglob("*"))
    environment = {
        "PATH": str(tools),
        "HOME": str(folder),
        "NODE1": "a",
        "NODE2": "b",
        "NODE_RANK": "0",
        "MASTER_ADDR": "a",
    }
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".sh", ".sbatch"):
            parsed = subprocess.run(["/bin/bash", "-n", str(path)], capture_output=True, check=False)
            assert parsed.returncode == 0, (path.name, parsed.stderr)
            subprocess.run(
                ["/bin/bash", str(path)], cwd=folder, env=environment, capture_output=True, check=False, timeout=20
            )
        elif path.suffix in (".yaml", ".yml"):
            list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        elif path.name == "Modelfile":
            instructions = path.read_bytes().decode().splitlines()
            assert [one.partition(" ")[0] for one in instructions] == ["FROM", *["PARAMETER"] * (len(instructions) - 1)]
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_every_writer_is_attacked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    targets = " ".join(capsys.readouterr().out.partition("one of:")[2].partition(";")[0].split()).split(", ")
    assert set(targets) == set(WRITERS)


@pytest.mark.parametrize("target", WRITERS)
def test_hostile_documents_write_nothing_that_runs(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WRITERS[target], "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    places = [place for place in words_of(document) if place[0] == "inputs"]
    tools, draw, written = tools_in(tmp_path / "tools"), random.Random(target), 0
    for number in range(ATTACKS):
        file, folder = tmp_path / "document.json", tmp_path / f"out-{number}"
        file.write_text(json.dumps(hostile(document, places, draw)))
        code = main(["export", str(file), "--to", target, "-o", str(folder)])
        told = capsys.readouterr().err
        assert code in (0, 2), (number, told)
        assert all(line.startswith("trilemma: ") for line in told.splitlines()), told
        assert told.count("\n") <= (3 if code == 0 else 1), told
        if code == 0:
            written += 1
            nothing_foreign_runs(folder, tools)
            shutil.rmtree(folder)
    assert written, "every document was refused: nothing was tried"
