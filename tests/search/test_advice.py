"""Plans that people act on: the first holds what was asked for, and its command carries the load that it was judged for."""

from __future__ import annotations

import json

import pytest

from trilemma.ask.questions import check, fit, plan
from trilemma.cli.main import main
from trilemma.report.chances import joint_chance


@pytest.mark.parametrize(
    ("model", "gpu", "options"),
    [
        ("llama-3.1-70b", "h200-sxm:8", {}),
        ("qwen3-32b", "l40s:4", {"ttft": 3000, "tpot": 60}),
        ("qwen3-32b", "l40s", {"ttft": 4000, "tpot": 80, "rate": 3}),
        ("gpt-oss-120b", "b200:2", {"ttft": 500, "concurrency": 64}),
        ("llama-3.3-70b", "mi300x:8", {"tpot": 60, "engine": "sglang"}),
        ("llama-3.1-8b", "rtx-4090:2", {"tpot": 30, "engine": "llama.cpp"}),
        ("mixtral-8x7b", "a100-sxm4-80gb:4", {"ttft": 2000, "engine": "tensorrt-llm"}),
    ],
)
def test_the_first_plan_holds_its_targets_with_at_least_even_odds(model, gpu, options):
    found = plan(model, gpu, serve="4096/1024", **options)
    assert found.fits
    assert all(joint_chance(one) >= 0.499 for one in found.plans[: found.result.best])
    screen = str(found)
    assert "#1 holds" in screen
    assert screen.count("with a chance of") >= 1


def test_more_confidence_asks_for_surer_plans_that_serve_fewer():
    sure = [plan("qwen3-32b", "l40s:4", serve="4096/1024", ttft=10_000, tpot=100, confidence=p) for p in (0.5, 0.9)]
    chances = [joint_chance(one.best) for one in sure]
    assert chances[0] >= 0.499
    assert chances[1] >= 0.899
    assert sure[0].result.plans[0].requests > sure[1].result.plans[0].requests


def test_no_target_no_chance():
    found = plan("qwen3-32b", "l40s:4", serve="1024/1024", concurrency=16)
    assert joint_chance(found.best) is None
    assert "chance" not in str(found)


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--max-num-seqs"),
        ("sglang", "--max-running-requests"),
        ("tensorrt-llm", "--max_batch_size"),
        ("llama.cpp", "--parallel"),
    ],
)
@pytest.mark.parametrize(("model", "gpu"), [("qwen3-32b", "l40s:4"), ("gpt-oss-120b", "h100-sxm:8")])
def test_plans_for_two_loads_are_two_commands(engine, flag, model, gpu):
    commands = []
    for readers in (3, 16):
        found = plan(
            model, gpu, serve="2048/512", concurrency=readers, engine=engine, pools="aggregated", precision="as-is"
        )
        answer = found.best
        words = answer.command.split()
        pool = answer.question.plan.pool
        each = -(-readers // (pool.replicas * int(pool.layout.dp)))
        whole = each * (int(pool.layout.dp) if "--enable-dp-attention" in words else 1)
        assert int(words[words.index(flag) + 1]) == whole
        commands.append(answer.command)
    assert commands[0] != commands[1]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("model", "gpu", "load"),
    [
        ("qwen3-32b", "h100-sxm:4", {"rate": 2.0}),
        ("deepseek-r1", "h200-sxm:8", {"concurrency": 40}),
        ("gpt-oss-120b", "b200:4", {"tpot": 20}),
    ],
)
def test_the_command_checked_gives_the_same_estimate(engine, model, gpu, load):
    found = plan(
        model, gpu, serve="2048/512", engine=engine, pools="aggregated", precision="as-is", kv_dtype="auto", **load
    )
    for one in found.plans[:2]:
        if one.question.plan.pool.replicas > 1 or ".yaml" in one.command:
            continue  # a router, or a file that export writes
        again = check(one.command, gpu=gpu)
        assert again.memory.total.value == pytest.approx(one.memory.total.value, rel=1e-6)
        assert again.cache.tokens.value == pytest.approx(one.cache.tokens.value, rel=1e-6)


def test_arrivals_get_room_above_their_mean():
    found = plan("qwen3-32b", "h100-sxm:4", serve="2048/512", rate=2, pools="aggregated", precision="as-is")
    first = found.result.plans[0]
    pool = first.plan.pool
    each = first.requests / (pool.replicas * int(pool.layout.dp))
    assert each + 2 * each**0.5 <= pool.options.max_seqs <= each + 4 * each**0.5 + 2


def test_a_limit_of_ones_own_is_kept():
    found = plan("qwen3-32b", "h100-sxm:4", serve="2048/512", concurrency=8, max_seqs=100)
    assert all("--max-num-seqs 100" in one.command for one in found.plans if one.command)


@pytest.mark.parametrize("to", ["llm-d", "kubernetes", "vllm"])
def test_exported_files_carry_the_load(to, tmp_path, capsys):
    assert main(["plan", "qwen3-32b", "--gpu", "l40s:4", "--serve", "4096/1024", "--concurrency", "6", "--json"]) == 0
    plans = tmp_path / "plans.json"
    text = capsys.readouterr().out
    plans.write_text(text, encoding="utf-8")
    pools = json.loads(text)["plans"][0]["inputs"]["plan"]["pools"]
    limit = pools[-1]["options"]["max_seqs"]
    main(["export", str(plans), "--to", to, "-o", str(tmp_path / "out")])
    written = "\n".join(one.read_text(encoding="utf-8") for one in (tmp_path / "out").rglob("*") if one.is_file())
    assert str(limit) in written
    assert "max-num-seqs" in written


def test_the_same_plan_by_fit_has_the_same_figures():
    found = plan("qwen3-32b", "h100-sxm:2", serve="2048/512", concurrency=12, pools="aggregated", precision="as-is")
    one = next(plan_ for plan_ in found.plans if plan_.question.plan.pool.replicas == 1)
    layout, options = one.question.plan.pool.layout, one.question.plan.pool.options
    again = fit(
        "qwen3-32b", "h100-sxm:2", isl=2048, osl=512, concurrency=12, tp=int(layout.tp), pp=int(layout.pp),
        dp=int(layout.dp), max_seqs=options.max_seqs, kv_dtype=options.kv_dtype, context=2560,
    )  # fmt: skip
    assert again.speed.ttft_s.interval.value == pytest.approx(one.speed.ttft_s.interval.value, rel=1e-9)
    assert again.memory.total.value == pytest.approx(one.memory.total.value, rel=1e-9)
