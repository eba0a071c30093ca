"""Options are taken as they are spelt; what is said of others names what would be right, in words that are taken."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from trilemma.cli.main import COMMANDS, build_parser, main
from trilemma.errors import InputError
from trilemma.hardware.gpu_argument import parse_gpu_argument


def _said(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(shlex.split(words)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit qwen3-32b --gpu l40s --gpus 4", "--gpu l40s:4"),
        ("fit qwen3-32b --gpus l40s:4", "--gpu l40s:4"),
        ("plan qwen3-32b --gpu h200-sxm --num-gpus 8 --serve 1024/1024", "--gpu h200-sxm:8"),
        ("fit qwen3-32b --gpu l40s --max-model-len 4096", "is --context here"),
        ("fit qwen3-32b --gpu l40s --gpu-memory-utilization=0.9", "is --memory-fraction here"),
        ("fit qwen3-32b --gpu l40s --tensor-parallel-size 2", "is --tp here"),
        ("fit qwen3-32b --gpu l40s --mem-fraction-static 0.9", "is --memory-fraction here"),
        ("fit qwen3-32b --gpu l40s --kv-cache-dtype fp8", "is --kv-dtype here"),
        ("fit qwen3-32b --gpu l40s --lora", "--method lora"),
        ("fit qwen3-32b --gpu l40s --swap-space 4", "trilemma check --gpu"),
        ("fit qwen3-32b --gpu l40s --global-batch 64", "--train 4096 --global-batch"),
        ("check --tensor-parallel-size 2 --gpu l40s:2 -- vllm serve m/x", "behind --"),
        ("plan qwen3-32b --gpu l40s:4 --serve 1024/1024 --conf 0.8", "--confidence"),
        ("fit qwen3-32b --gpu l40s --islx 4", "--isl"),
        ("facility --gpu h100-sxm:8", "without it here, such as trilemma facility h100-sxm:8"),
        ("recommend qwen3-32b --serve 64/64 --gpu h100-sxm:8", "keep it to some with --include"),
        ("fit qwen3-32b extra --gpu l40s", "one word too many"),
        ("fit llama 3 70b --gpu l40s", "stands in quotes"),
        ("plan qwen3-32b --gpu l40s:4 --serve 1024/1024 --qps 5", "--rate 5 here"),
        ("recommend qwen3-32b --serve 1024/1024 --request-rate=5", "--rate 5 here"),
        ("precision plan qwen3-32b --gpux l40s", "--gpu"),
    ],
)
def test_unknown_options_name_the_right_one(capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    said = _said(capsys, words)
    assert says in said
    assert f"trilemma {words.split()[0]}" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_option_of_any_command_can_be_cut(command: str) -> None:
    parser = build_parser(command)
    assert not parser.allow_abbrev
    sub = parser._subparsers._group_actions[0].choices[command]  # type: ignore[union-attr, index, call-overload]
    assert not sub.allow_abbrev


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("4xl40s", "l40s:4"),
        ("4x L40S", "l40s:4"),
        ("8 x H200-SXM", "h200-sxm:8"),
        ("l40s x4", "l40s:4"),
        ("l40s:x4", "l40s:4"),
        ("l40s*4", "l40s:4"),
        ("l40s:four", "l40s:4"),
        ("l40s,h100-sxm", "l40s+h100-sxm"),
        ("rtx-4090:2,rtx-3090:1", "rtx-4090:2+rtx-3090:1"),
        ("8xH100", "h100-sxm5-80gb:8"),
    ],
)
def test_other_forms_of_a_count_are_told_the_right_one(text: str, right: str) -> None:
    with pytest.raises(InputError) as error:
        parse_gpu_argument(text)
    assert right in str(error.value)
    for part in right.split("+"):
        parse_gpu_argument(part)  # the advice is taken


def test_advice_of_check_names_a_card_that_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    said = _said(capsys, "check --gpu h100-sxm")
    advised = re.search(r"--gpu (\S+)", said)
    assert advised is not None
    parse_gpu_argument(advised[1])


def test_a_slip_in_a_family_of_cards_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean h100-sxm " in _said(capsys, "fit qwen3-32b --gpu h100-smx")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plan qwen3-8b --gpu h100-sxm --isl 4096 --osl 1024", "--serve 4096/1024"),
        ("compare qwen3-8b --gpu h100-sxm --gpu h200-sxm --osl=64", "--serve 1024/64"),
        ("recommend qwen3-8b", "needs what is run: --serve ISL/OSL, such as --serve 4096/1024, or --train SEQ"),
        (
            "plan qwen3-8b --gpu h100-sxm",
            "--serve is missing; give prompt and output tokens such as 4096/1024, a --trace of requests, or --train SEQ",
        ),
    ],
)
def test_lengths_as_fit_takes_them_are_told_where_they_are_one_option(
    capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    assert told in _said(capsys, words)


def _asked(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, object]:
    main(shlex.split(words))
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(("stated", "ms"), [("2s", 2000), ("1.5s", 1500), ("40ms", 40), ("2.5 ms", 2.5), ("50", 50)])
def test_times_may_have_a_unit(capsys: pytest.CaptureFixture[str], stated: str, ms: float) -> None:
    found = _asked(capsys, f"fit qwen3-8b --gpu h100-sxm --isl 1024 --osl 128 --tpot '{stated}' --json")
    assert found["inputs"]["workload"]["tpot_ms"] == pytest.approx(ms)  # type: ignore[index]


def test_times_without_a_number_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--ttft" in _said(capsys, "fit qwen3-8b --gpu h100-sxm --ttft ms")
    assert "--ttft" in _said(capsys, "fit qwen3-8b --gpu h100-sxm --ttft 2min")


def test_check_is_told_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    load = "--isl 8192 --osl 512 --concurrency 16"
    command = "vllm serve Qwen/Qwen3-8B --max-model-len 16384"
    checked = _asked(capsys, f"check --gpu h100-sxm {load} --json -- {command}")
    fitted = _asked(capsys, f"fit qwen3-8b --gpu h100-sxm {load} --context 16384 --json")
    assert checked["speed"]["tpot_ms"] == fitted["speed"]["tpot_ms"]  # type: ignore[index]
    assert checked["speed"]["batch"] == fitted["speed"]["batch"]  # type: ignore[index]


def test_the_load_leaves_the_memory_of_a_command_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's context is the engine's default, not the longest request of the load."""
    command = "vllm serve Qwen/Qwen3-8B"
    alone = _asked(capsys, f"check --gpu h100-sxm --json -- {command}")
    loaded = _asked(capsys, f"check --gpu h100-sxm --isl 1024 --osl 64 --rate 2 --json -- {command}")
    assert alone["memory"] == loaded["memory"]
    assert alone["kv_cache"] == loaded["kv_cache"]
    assert alone["speed"] != loaded["speed"]


def test_check_of_a_mixture_on_the_host_at_a_long_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """ggml-org/llama.cpp issue 25859: 30.6 tokens a second at 48.5k of context, which 1,024 tokens do not tell."""
    command = (
        "llama-server -m Qwen3.6-35B-A3B-UD-Q4_K_M.gguf -ngl all -ncmoe 22 --fit off -c 131072 -ctk q8_0 -ctv q8_0"
    )
    head = "check --gpu rx-9070-xt --host DDR5-5600x2"
    short = _asked(capsys, f"{head} --json -- {command}")
    long = _asked(capsys, f"{head} --isl 48500 --osl 512 --json -- {command}")
    assert long["speed"]["tpot_ms"]["value"] > short["speed"]["tpot_ms"]["value"]  # type: ignore[index]


def test_acceptance_of_a_commands_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    command = """vllm serve Qwen/Qwen3.5-27B --speculative-config '{"method":"mtp","num_speculative_tokens":2}'"""
    head = "check --gpu h200-sxm --isl 1024 --osl 128 --concurrency 1"
    low = _asked(capsys, f"{head} --draft mtp:2:0.3 --json -- {command}")
    high = _asked(capsys, f"{head} --draft mtp:2:0.9 --json -- {command}")
    assert high["speed"]["tpot_ms"]["value"] < low["speed"]["tpot_ms"]["value"]  # type: ignore[index]
    assert "mtp:2:SHARE" in _said(capsys, f"{head} --draft mtp:4:0.3 -- {command}")
    assert "drafts nothing" in _said(capsys, f"{head} --draft mtp:2:0.3 -- vllm serve Qwen/Qwen3-8B")


def test_a_load_longer_than_the_command_admits_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = "check --gpu h100-sxm --isl 8192 --osl 512 -- vllm serve Qwen/Qwen3-8B --max-model-len 4096"
    assert "4096 tokens that the command admits" in _said(capsys, words)


def test_a_number_has_no_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check", "--gpu", "h100-sxm", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size.x", "2"])
        == 2
    )
    assert "--tensor-parallel-size takes one value and has no keys" in capsys.readouterr().err
