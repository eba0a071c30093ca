"""``trilemma here`` and ``--gpu auto`` on machines as their tools describe them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import jsonschema
import pytest

import trilemma as tl
from asking import document, screen
from machines import MACHINES, Machine, table
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.machine.machine import recorded_machine
from trilemma.report.schemas import schema_of

NEEDS_NO_TOOL = {"PATH": "/nonexistent"}


def recorded(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "output.txt"
    path.write_text(text)
    return path


def fake_tool(folder: Path, name: str, text: str, *, code: int = 0) -> None:
    (folder / f"{name}.out").write_text(text)
    path = folder / name
    path.write_text(f"#!/bin/sh\n/bin/cat {folder / name}.out\nexit {code}\n")
    path.chmod(0o755)


def test_at_least_twelve_machines_are_kept() -> None:
    assert len(MACHINES) >= 12


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_right_card_and_count(machine: Machine, tmp_path: Path) -> None:
    found = recorded_machine([recorded(tmp_path, machine.text)])
    assert len(found.cards) == machine.count
    assert {card.part.id if card.part else None for card in found.cards} == {machine.card}


def test_models_of_eight_h100(tmp_path: Path) -> None:
    path = recorded(tmp_path, MACHINES[0].text)
    found = tl.here(path)
    runs = {run.model: run for run in found.runs}
    assert runs["gpt-oss-120b"].gpus == 1
    assert runs["llama-3.3-70b"].gpus == 2  # 131 GiB of weights on cards of 79.6 GiB
    assert found.too_large[0] == "kimi-k2.6"  # 554 GiB of INT4 weights leave too little of 637 GiB
    same = tl.fit("llama-3.3-70b", "h100-sxm:2", isl=1024, osl=256, context=8192, concurrency=1, engine="vllm")
    assert same.speed is not None
    assert runs["llama-3.3-70b"].tokens_per_s == same.speed.output_tokens_per_s
    assert runs["llama-3.3-70b"].command == same.command
    text = screen(f"here {path}")
    assert "8 x NVIDIA H100 80GB HBM3" in text
    assert all(run.command in text for run in found.runs)
    jsonschema.validate(document(f"here {path}"), schema_of("here"))


def test_a_mac_counts_the_memory_it_was_sold_with(tmp_path: Path) -> None:
    mac = recorded_machine([recorded(tmp_path, MACHINES[-1].text)])
    assert mac.gpu_words == "apple-m2-max-96gb:1"
    assert tl.gpu(mac.gpu_words.rpartition(":")[0]).label_gb == 96


def test_a_machine_without_any_tool_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", NEEDS_NO_TOOL["PATH"])
    assert main(["here"]) == 0
    told = capsys.readouterr().out
    assert "no GPU on this machine" in told
    assert "nvidia-smi is not on this machine" in told
    assert main(["fit", "qwen3-8b", "--gpu", "auto"]) == 2
    assert "no GPU was seen on this machine (nvidia-smi is not on this machine" in capsys.readouterr().err


def test_auto_is_the_cards_that_the_tool_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(
        tmp_path,
        "nvidia-smi",
        "index, name, memory.total [MiB]\n0, NVIDIA L40S, 46068 MiB\n1, NVIDIA L40S, 46068 MiB\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tl.fit("qwen3-32b", "auto").question.cluster.gpus == 2
    assert tl.check("vllm serve Qwen/Qwen3-8B", "auto").question.cluster.accelerator.id == "nvidia-l40s"
    assert tl.here().cards[0].count == 2


def test_a_driver_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(
        tmp_path,
        "nvidia-smi",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        code=9,
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    found = tl.here()
    assert not found.cards
    assert "couldn't communicate" in found.unseen[0].why


def test_a_tool_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("trilemma.machine.probes.PATIENCE_S", 0.3)
    began = time.monotonic()
    found = tl.here()
    assert time.monotonic() - began < 10
    assert "did not answer" in found.unseen[0].why


@pytest.mark.parametrize(
    "content", [b"", b"\0\x01binary" * 99, b'{"card0": ' + b"[" * 5000, b"NVIDIA-SMI\n" + b"|" * 200000]
)
def test_files_that_describe_no_machine(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["here", str(path)]) == 2
    assert "holds nothing that a tool prints of a machine" in capsys.readouterr().err


def test_old_drivers_cut_names(tmp_path: Path) -> None:
    found = recorded_machine(
        [recorded(tmp_path, table("GeForce RTX 2080...", 11019, 250, 1, driver="440.33", cuda="10.2"))]
    )
    assert len(found.cards) == 1
    assert found.driver == "440.33"


def test_a_card_without_a_name_is_counted(tmp_path: Path) -> None:
    found = recorded_machine([recorded(tmp_path, "index, memory.total [MiB]\n0, 81559 MiB\n1, 81559 MiB\n")])
    assert [card.name for card in found.cards] == ["GPU without a name"] * 2
    with pytest.raises(InputError, match="GPU without a name"):
        _ = found.gpu_words


def test_the_document_is_plain(tmp_path: Path) -> None:
    found = tl.here(recorded(tmp_path, MACHINES[3].text)).to_dict()
    assert json.loads(json.dumps(found))["cards"][0]["id"] == "nvidia-rtx-3090"
    assert os.sep not in found["cards"][0]["name"]
