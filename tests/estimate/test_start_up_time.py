"""How long engines take until they answer: phases as logs state them, storage, engines that compile and those that do not."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.estimate.start_up_time import StartUpTime
from trilemma.measured.serving.start_up_time import FIGURES, figures_of, fitted
from trilemma.timing.starting import figure, reading_s, starting_data


def _told(model: str, gpu: str, **options: object) -> StartUpTime:
    found = tl.fit(model, gpu, **options).start_up_time
    assert found is not None
    return found


@pytest.mark.parametrize("phase", list(FIGURES))
def test_the_shipped_numbers_are_those_of_the_shipped_logs(phase: str) -> None:
    """Made again from its rows, each number is what ships; of runs left out its range holds nine of ten and more."""
    middle, half = fitted(phase)
    row = starting_data()["phases"][phase]
    assert row["middle"] == pytest.approx(middle, rel=0.01)
    assert row["half"] == pytest.approx(half, rel=0.05)
    logs = np.log(figures_of(phase))
    others = (logs.sum() - logs) / (len(logs) - 1)
    assert np.mean(np.abs(logs - others) <= row["half"] * 1.05) >= 0.85


def test_at_least_25_logs_are_behind_the_phases() -> None:
    runs = starting_data()["run"]
    assert sum(len([name for name in row if name.endswith("_s")]) > 0 for row in runs) >= 25
    assert all(row["source"] for row in runs)


@pytest.mark.parametrize(
    ("model", "gpu", "options", "seconds"),
    [
        # vllm-project/vllm#32191: `vllm bench startup`, files read before
        ("qwen3-32b", "h100-sxm", {"storage": "20GB/s", "context": 4096}, 68.5),
        # Sandermage/genesis-vllm-patches, a boot on two RTX 3090 of 23 GiB of weights: T+135 s
        ("qwen3-30b-a3b", "rtx-3090:2", {"precision": "int4", "context": 4096}, 135),
        # vllm-project/vllm#44881: a 22 GiB model on an RTX 5090
        ("qwen3-32b", "rtx-5090", {"precision": "nvfp4", "context": 4096}, 277),
    ],
)  # fmt: skip
def test_whole_start_ups_lie_within_the_range(model: str, gpu: str, options: dict[str, object], seconds: float) -> None:
    """Wholes that the numbers were not fitted to."""
    whole = _told(model, gpu, **options).seconds
    assert whole is not None
    assert whole.low <= seconds <= whole.high


def test_storage_decides_where_it_is_the_slower() -> None:
    """141 GB at 1 GB/s take 141 s and more; a rate beyond that of files in memory spares nothing more."""
    slow, fast, faster = (
        _told("llama-3.1-70b", "h100-sxm:4", storage=rate).phases[1].seconds for rate in ("1GB/s", "20GB/s", "40GB/s")
    )
    assert slow.value == pytest.approx(141.1, rel=0.02)
    assert fast.value < slow.value / 5
    assert faster.value == pytest.approx(fast.value)
    assert (
        reading_s(1e9, None).high / reading_s(1e9, None).low > 10 * reading_s(1e9, 1e9).high / reading_s(1e9, 1e9).low
    )


def test_phases_of_a_first_start_and_of_a_later_one() -> None:
    first = _told("llama-3.1-8b", "h100-sxm")
    assert [one.name for one in first.phases] == ["process", "read", "placed", "compile", "capture", "rest"]
    assert first.seconds is not None
    assert first.before is not None
    assert first.seconds.value == pytest.approx(sum(one.seconds.value for one in first.phases))
    assert first.seconds.value - first.before.value == pytest.approx(
        figure("compile_s").value - figure("compiled_s").value
    )
    eager = _told("llama-3.1-8b", "h100-sxm", eager=True)
    assert [one.name for one in eager.phases] == ["process", "read", "placed", "rest"]
    older = _told("llama-3.1-8b", "h100-sxm", engine="vllm@0.7")
    assert "compile" not in [one.name for one in older.phases]


def test_an_engine_without_logs_tells_of_its_weights_alone() -> None:
    found = _told("llama-3.1-8b", "h100-sxm", engine="sglang", storage="2GB/s")
    assert [one.name for one in found.phases] == ["read", "placed"]
    assert found.seconds is None
    assert found.untold


def test_it_is_shown_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    line = "fit llama-3.1-8b --gpu h100-sxm --storage 2GB/s"
    assert main(line.split()) == 0
    assert "until it answers" in " ".join(capsys.readouterr().out.split())
    assert main([*line.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["start_up_time"]["seconds"]["low"] < told["start_up_time"]["seconds"]["value"]
    assert told["inputs"]["cluster"]["storage_bytes_per_s"] == 2e9
    assert main(["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--storage", "fast"]) == 2
    assert "storage" in capsys.readouterr().err


def test_one_more_engine_is_ready_when_its_start_up_has_ended() -> None:
    """`auto` is what `fit` says of the start-up: the same run as with that number."""
    load = {"arrivals": "poisson:40", "isl": 1024, "osl": 256, "requests": 2000, "bounds": False, "replicas": 4}
    whole = _told("llama-3.1-8b", "h100-sxm").seconds
    assert whole is not None
    runs = [
        tl.simulate("llama-3.1-8b", "h100-sxm:4", autoscale=f"1:16:{start}:300", **load)
        for start in ("auto", f"{whole.value}", "0")
    ]
    assert runs[0].metrics.ttft_ms == runs[1].metrics.ttft_ms
    assert runs[0].metrics.ttft_ms is not None
    assert runs[2].metrics.ttft_ms is not None
    assert runs[0].metrics.ttft_ms.p99 > runs[2].metrics.ttft_ms.p99
