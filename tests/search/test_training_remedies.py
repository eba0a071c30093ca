"""What would make a training plan fit, through the commands that say it."""

import json
import shlex

import pytest

from trilemma.cli.main import main

CASES = (
    "llama-3.1-8b --gpu rtx-4090 --train 2048 --method lora --global-batch 16",
    "qwen2.5-7b --gpu rtx-3090 --train 4096 --method qlora --global-batch 16 --micro-batch 16",
    "qwen3-14b --gpu a100-sxm4-80gb:8 --train 4096 --global-batch 64",
    "mixtral-8x7b --gpu h100-sxm:8 --train 4096 --global-batch 64 --engine deepspeed",
    "llama-3.1-70b --gpu h100-sxm:16 --train 4096 --global-batch 64",
)


def answer(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main(["fit", *shlex.split(words), "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("words", CASES)
def test_every_remedy_fits_when_it_is_asked_for(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing = answer(words, capsys)
    assert not failing["fits"]
    remedies = failing["remedies"]
    assert isinstance(remedies, list)
    for remedy in remedies:
        changed = remedy["flags"]
        kept = words
        for option in [word for word in shlex.split(changed) if word.startswith("--")]:
            parts = shlex.split(kept)
            if option in parts:
                at = parts.index(option)
                kept = shlex.join(parts[:at] + parts[at + 2 :])
        assert answer(f"{kept} {changed}", capsys)["fits"], changed


def test_what_changes_no_result_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    remedies = answer(CASES[0], capsys)["remedies"]
    assert isinstance(remedies, list)
    assert remedies[0]["flags"] == "--recompute full"
    assert remedies[0]["quality"] == "unchanged"
    assert any(one["quality"] != "unchanged" for one in remedies[1:])


def test_a_plan_that_fits_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "remedies" not in answer("llama-3.2-1b --gpu h100-sxm --train 2048 --global-batch 8", capsys)


def test_a_command_that_does_not_fit_has_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "deepspeed --num_gpus 8 train.py --model_name_or_path qwen3-8b --bf16 true --per_device_train_batch_size 16"
        " --max_length 8192"
    )
    code = main(["check", "--gpu", "a100-sxm4-40gb:8", "--", *shlex.split(command)])
    assert code == 1
    assert "would make it fit" in capsys.readouterr().out
