"""The measurement on this machine's processor: every bench runs, and the file that it writes answers questions."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.asking import document, screen
from tests.measuring.machine_file import PROCESSOR, measurement
from tests.measuring.machine_file import device as made_up

from trilemma.cli.main import main
from trilemma.measuring import kernels
from trilemma.measuring.clock import Patience, Stopwatch, timed

pytest.importorskip("torch")
pytest.importorskip("transformers")


def test_the_median_stands_for_what_was_timed() -> None:
    clock = iter(range(1000))
    watch = Stopwatch(wait=lambda: None, now=lambda: float(next(clock)))
    found = timed(lambda: None, watch, Patience(warm_s=0.0, measure_s=0.0))
    assert found.median_s == 1.0
    assert found.spread == 0.0
    assert found.repeats >= 3


def test_the_processor_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trilemma.measuring import suite

    monkeypatch.setattr(suite, "QUICK", Patience(warm_s=0.0, measure_s=0.0))
    monkeypatch.setattr(suite, "QUICK_BYTES", 2**20)
    monkeypatch.setattr(kernels, "_STREAM_BYTES", 16 * 2**20)
    file = tmp_path / "here.toml"
    found = document(f"measure --quick --device cpu --threads 1 --load-from {tmp_path} -o {file}")
    figures = {one["figure"]: one["value"] for one in found["figures"]}
    assert found["kind"] == "cpu"
    assert found.get("left_out", []) == []
    for name in ("copy_bytes_per_s", "products_bf16_flops_per_s", "stream_fp32_bytes_per_s", "gather_bytes_per_s",
                 "attention_bf16_flops_per_s", "load_bytes_per_s", "launch_s", "update_fp32_bytes_per_s",
                 "layer_stream_bf16_bytes_per_s", "host_training_layer_fp32_s"):  # fmt: skip
        assert figures[name] > 0, name
    assert tomllib.loads(file.read_text())["measured"]["launch_s"]["value"] == pytest.approx(
        figures["launch_s"], rel=1e-3
    )
    answer = document(f"fit qwen3-0.6b --gpu {file} --engine transformers --isl 64 --osl 16 --concurrency 1")
    assert answer["fits"]


def test_a_bench_that_cannot_run_is_left_out() -> None:
    from trilemma.measuring.device import find_device
    from trilemma.measuring.suite import _tried

    def broken() -> object:
        raise RuntimeError("no kernel for this\nsecond line")

    left_out: list[str] = []
    bench = kernels.Bench(figure="x_s", shape="y", work=0.0, make=broken)  # type: ignore[arg-type]
    here = find_device("cpu", threads=1)
    assert _tried(bench, here, Patience(warm_s=0.0, measure_s=0.0), left_out) is None
    large = kernels.Bench(figure="x_s", shape="y", work=0.0, make=broken, needs_bytes=1e18)  # type: ignore[arg-type]
    assert _tried(large, here, Patience(warm_s=0.0, measure_s=0.0), left_out) is None
    assert left_out == ["x_s y: no kernel for this", "x_s y: not enough free memory"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("measure --device tpu", "is no device"),
        ("measure --device cuda:77", "cards; give cpu"),
        ("measure --load-from /nowhere", "is no folder"),
        ("measure nonsense", "sub-command"),
        ("measure pilot qwen3-0.6b --osl 1", "give at least 2"),
    ],
)
def test_bad_input_is_one_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.splitlines()) == 1


def test_a_pilot_beside_its_prediction(tmp_path: Path) -> None:
    """Memory line by line to 1 %: the tracker counts every tensor, as the prediction does."""
    from trilemma.measuring.card_file import card_text

    file = tmp_path / "card.toml"
    file.write_text(card_text(measurement(PROCESSOR, made_up("cpu", "A processor", 24, None))), encoding="utf-8")
    words = f"measure pilot qwen3-0.6b --layers 2 --hidden 256 --seq 64 --osl 4 --steps 1 --threads 1 --device cpu --gpu {file}"
    for more in ("", " --recompute full --seq 256 --only training", " --dtype fp32 --seq 256 --only training"):
        found = document(words + more)
        memory = {one["figure"]: one for one in found["figures"] if one["unit"] == "bytes"}
        assert memory["weights"]["error"] == pytest.approx(0, abs=1e-3), more
        assert memory["optimizer"]["error"] == pytest.approx(0, abs=1e-3), more
        assert memory["peak memory"]["error"] == pytest.approx(0, abs=0.05), more
        parts = sum(one["measured"] for one in found["figures"] if one.get("of") == "training step")
        step = next(one for one in found["figures"] if one["figure"] == "training step")
        assert parts == pytest.approx(step["measured"], rel=1e-3)
    shown = screen(words + " --only generation --bar 0.0001", code=1)
    assert "generated tokens" in shown
    assert "training step" not in shown


@pytest.mark.slow
def test_collectives_between_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import json\n"
        "from trilemma.measuring.collectives import collective_figures, world\n"
        "from trilemma.measuring.device import find_device\n"
        "found = collective_figures(find_device('cpu', threads=1), rounds=3)\n"
        "if world()[0] == 0: print(json.dumps({f'{one.figure} {one.shape}': one.value for one in found}))\n"
    )
    told = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    figures = json.loads(next(line for line in told.stdout.splitlines() if line.startswith("{")))
    assert figures["all_reduce_s all_reduce of 4 KiB, 2 ranks"] > 0
    assert figures["all_gather_bytes_per_s all_gather of 16 MiB, 2 ranks"] > 1e7


def test_ranks_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "many")
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert main(["measure", "--device", "cpu"]) == 2
    assert "torchrun" in told.getvalue()


@pytest.mark.parametrize("name", ["machine.yaml", "folder.toml", "nowhere/machine.toml"])
def test_what_could_not_be_kept_is_not_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trilemma.measuring import suite

    def measured(*_: object, **__: object) -> None:
        raise AssertionError("a minute was spent")

    monkeypatch.setattr(suite, "measure_device", measured)
    (tmp_path / "folder.toml").mkdir()
    assert main(["measure", "-o", str(tmp_path / name)]) == 2
    assert f"{name}" in capsys.readouterr().err
