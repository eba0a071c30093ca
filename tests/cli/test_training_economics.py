"""A run of stated length: failures, checkpoints, goodput, and the curve over GPUs, as a user asks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import trilemma as tl
from trilemma.cli.main import main

JOB = {"train": 8192, "global_batch": 128, "tokens": "1T"}


def run(gpu: str = "h100-sxm:64", **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = tl.train("llama-3.1-8b", gpu, **{**JOB, "top": 1, **options}).to_dict()["plans"][0][
        "training_run"
    ]
    return found


def test_llama_3_405b_is_interrupted_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """The Llama 3 Herd of Models, 3.3.4: 419 interruptions in 54 days on 16,384 H100, more than 90 % effective training time.
    16-bit weights, FP32 masters and two moments are 14 bytes a parameter: 5.7 TB, once."""
    ask = [
        "fit",
        "llama-3.1-405b",
        "--gpu",
        "h100-sxm:16384",
        "--train",
        "8192",
        "--global-batch",
        "2048",
        "--tokens",
        "15.6T",
    ]
    assert main([*ask, "--tp", "8", "--pp", "16", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)["training_run"]
    assert found["hours_between_interruptions"] == pytest.approx(54 * 24 / 419, rel=0.02)
    assert found["interruptions"] == pytest.approx(found["days"]["value"] * 419 / 54, rel=0.03)
    assert 0.90 < found["goodput"] < 0.99
    assert found["goodput"] + found["lost_share"] == pytest.approx(1)
    assert found["checkpoint_bytes"] == pytest.approx(14 * 405.85e9, rel=0.05)


def test_failures_lengthen_a_run_and_none_can_be_asked_for() -> None:
    usual, never, often = run(), run(mtbf=0), run(mtbf=2000)
    assert never["lost_share"] == 0
    assert "hours_between_interruptions" not in never
    assert never["days"]["value"] < usual["days"]["value"] < often["days"]["value"]
    assert often["interruptions"] > 20 * usual["interruptions"]
    assert run(mtbf=2000, restart=3600)["goodput"] < often["goodput"]
    assert run(mtbf=2000, spares=0)["days"]["value"] > run(mtbf=2000, spares=8)["days"]["value"]


def test_checkpoints_on_slow_storage_hold_training_up_or_wait() -> None:
    beside, still = (run(mtbf=2000, storage="0.5GB/s", precision="bf16", sync_checkpoints=one) for one in (False, True))
    size = beside["checkpoint_bytes"]
    assert size == pytest.approx(14 * 8.03e9, rel=0.05)
    assert beside["checkpoint_write_s"] == pytest.approx(size / 0.5e9)
    assert still["checkpoint_stall_s"] == pytest.approx(size / 0.5e9)
    assert still["goodput"] < beside["goodput"] < 1


def test_the_curve_over_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    ask = [
        "plan",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm:16",
        "--train",
        "8192",
        "--global-batch",
        "32",
        "--tokens",
        "100B",
    ]
    assert main([*ask, "--top", "1", "--scale", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    curve = document["scaling"]
    assert [one["gpus"] for one in curve][-2:] == [8, 16]
    assert curve[0]["efficiency"] == 1
    assert [one["tokens_per_s"] for one in curve] == sorted(one["tokens_per_s"] for one in curve)
    last = curve[-1]
    assert last["step_s"] == pytest.approx(document["plans"][0]["speed"]["step_s"]["value"], rel=1e-3)
    assert last["run"]["days"]["value"] == pytest.approx(
        document["plans"][0]["training_run"]["days"]["value"], rel=1e-3
    )
    assert last["network_bytes_per_s"] > 0
    assert main([*ask[:-2], "--top", "1", "--scale"]) == 0
    assert "more or fewer GPUs, one global batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tokens": None, "mtbf": 1000}, "`mtbf` needs the length of the run"),
        ({"storage": "fast"}, "`storage` 'fast' is not a rate"),
        ({"mtbf": -5}, "out of range"),
    ],
)
def test_terms_that_cannot_be(options: dict[str, Any], why: str) -> None:
    with pytest.raises(tl.InputError, match=why):
        run(**options)
