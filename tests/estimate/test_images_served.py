"""Images that come with prompts: their tokens are part of the prompt, their tower part of the time to the first token."""

from __future__ import annotations

import json

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.models.resolve import load_model
from trilemma.timing import Machine, model_work
from trilemma.timing.vision_tower import tower_pass

LOAD = {"isl": 256, "osl": 128, "concurrency": 4}


def told(answer: object, code: str) -> str:
    return next(one.message for one in answer.warnings if one.code == code)  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_images_are_prompt_tokens_and_time_of_the_tower(engine: str) -> None:
    words = tl.fit("qwen2.5-vl-7b", "h100-sxm", engine=engine, **LOAD)
    seen = tl.fit("qwen2.5-vl-7b", "h100-sxm", engine=engine, images=2, image_size="1280x960", **LOAD)
    load = seen.to_dict()["inputs"]["workload"]
    assert (load["isl"], load["image_tokens"], load["image_size"]) == (256 + 2 * 1566, 2 * 1566, [1280, 960])
    longer = tl.fit("qwen2.5-vl-7b", "h100-sxm", engine=engine, **{**LOAD, "isl": 256 + 2 * 1566})
    lines, plain = seen.speed.ttft_lines, longer.speed.ttft_lines
    assert lines["images"] > 0
    assert "images" not in plain
    assert lines["prefill"] == pytest.approx(plain["prefill"])
    assert sum(lines.values()) == pytest.approx(seen.speed.ttft_s.interval.value)
    assert seen.speed.ttft_s.interval.value > longer.speed.ttft_s.interval.value > words.speed.ttft_s.interval.value
    assert seen.speed.tpot_s.interval.value > longer.speed.tpot_s.interval.value
    assert sum(seen.speed.lines.values()) == pytest.approx(seen.speed.tpot_s.interval.value)
    assert seen.speed.ttft_s.interval.high > longer.speed.ttft_s.interval.high
    assert "2 images of 1280 x 960 with each prompt: 1,566 tokens each (6,256 patches), beside 256 of text" in told(
        seen, "images"
    )


def test_the_tower_is_no_faster_than_its_flops() -> None:
    """2 · weights · patches and attention at the peak of an H100 (989.4 TFLOPS dense): 6,256 patches of Qwen2.5-VL's tower."""
    model = load_model("qwen2.5-vl-7b")
    cluster = tl.Cluster.of(tl.gpu("h100-sxm"), 1)
    machine = Machine.serving(cluster, work=model_work(model, cluster.accelerator), engine="vllm")
    one = tower_pass(model, machine, patches=6256, span=6256, tokens=1564, tp=1)
    blocks = 32 * (4 * 1280**2 + 3 * 1280 * 3420)
    attention = (
        4 * 6256 * 1280 * (4 * 6256 + 28 * 64)
    )  # four layers attend to all, the others to windows of 8 x 8 patches
    least_s = (2 * blocks * 6256 + attention) / 989.4e12
    assert least_s < float(one.total_s) < 10 * least_s
    halved = tower_pass(model, machine, patches=6256, span=6256, tokens=1564, tp=2)
    assert float(halved.total_s) < float(one.total_s)
    whole = tower_pass(load_model("qwen3-vl-8b"), machine, patches=6256, span=6256, tokens=1564, tp=1)
    assert float(whole.lines["attention"]) > float(one.lines["attention"])


def test_checks_refuse_what_the_command_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    serve = "vllm serve Qwen/Qwen2.5-VL-7B-Instruct --max-model-len 8192"
    asked = ["check", "--gpu", "h100-sxm", "--isl", "100", "--osl", "100"]
    for words, more, says in (
        (["--images", "3"], ["--limit-mm-per-prompt", '{"image": 2}'], "takes 2 a prompt"),
        (["--images", "3"], ["--language-model-only"], "text alone"),
        (["--images", "9"], [], "of them images"),
        (["--image-size", "9x9"], [], "how many come with each prompt"),
        (["--images", "1", "--image-size", "9"], [], "give them as 1280x960"),
    ):
        assert main([*asked, *words, "--", *serve.split(), *more]) == 2
        shown = capsys.readouterr().err
        assert says in shown
        assert shown.count("\n") == 1


def test_fewer_pixels_leave_more_cache_and_fewer_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    serve = ["vllm", "serve", "Qwen/Qwen2.5-VL-7B-Instruct", "--max-model-len", "32768"]
    documents = []
    for more in ([], ["--mm-processor-kwargs", '{"max_pixels": 501760}']):
        assert (
            main(
                [
                    "check",
                    "--gpu",
                    "h100-sxm",
                    "--images",
                    "1",
                    "--image-size",
                    "4000x3000",
                    "--json",
                    "--",
                    *serve,
                    *more,
                ]
            )
            == 0
        )
        documents.append(json.loads(capsys.readouterr().out))
    wide, narrow = documents
    assert narrow["inputs"]["workload"]["image_tokens"] == 21 * 29 + 2  # cells of 28 pixels, at most 640
    activations = [{one["name"]: one["bytes"] for one in each["memory"]["items"]}["activations"] for each in documents]
    assert activations[1] < activations[0]
    assert narrow["kv_cache"]["tokens"] > wide["kv_cache"]["tokens"]
    assert not any("not counted yet" in one["message"] for one in narrow["warnings"])


def test_a_load_of_images_stays_one_when_the_plan_is_asked_again() -> None:
    first = tl.fit("gemma-3-12b", "h100-sxm", images=1, **LOAD)
    again = tl.fit(first.question)
    assert again.to_dict()["speed"] == first.to_dict()["speed"]


def test_images_before_pools_apart_are_refused_not_left_out() -> None:
    with pytest.raises(tl.InputError, match="`images` 1: images before pools apart are not told yet"):
        tl.fit("qwen2.5-vl-7b", "h100-sxm:2", prefill="1xTP1", decode="1xTP1", images=1, **LOAD)
