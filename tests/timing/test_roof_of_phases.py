"""No phase is faster than the datasheet of the units that compute it, and no plan makes more than its peaks allow."""

from __future__ import annotations

import random

import numpy as np
import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work, prefill_pass

MODELS = ("llama-2-13b", "llama-3.1-8b", "devstral-small-24b", "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v3")
GPUS = ("h100-nvl-94gb", "rtx-5090", "rtx-4090", "h200-sxm", "b200", "a100-sxm4-80gb", "l40s", "mi300x", "m3-ultra")
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")


def asked(seed: int) -> tuple[str, str, str, str, int]:
    draw = random.Random(seed)
    return (
        draw.choice(MODELS),
        draw.choice(GPUS),
        draw.choice(ENGINES),
        draw.choice(("", "fp8", "nvfp4", "Q4_K_M")),
        seed,
    )


@pytest.mark.parametrize("seed", range(120))
def test_no_pass_is_faster_than_its_roof(seed: int) -> None:
    name, gpu, engine, precision, _ = asked(seed)
    model, cluster = load_model(name), Cluster.of(find(gpu), 8)
    if precision and model.quantization is None:
        model = requantize(model, precision)
    work = model_work(model, cluster.accelerator)
    machine = Machine.serving(cluster, work=work, engine=engine)
    ideal, kv = machine.at_datasheet(), catalogue.get("bf16")
    layout = Layout(tp=np.array([1, 1, 2, 8]), pp=np.array([1, 2, 2, 1]), dp=np.array([1, 1, 2, 1]))
    for load in (1.0, 16.0, 256.0):
        step, roof = (
            decode_step(work, one, layout, batch=load, context=2048, kv_format=kv).total_s for one in (machine, ideal)
        )
        assert np.all(step >= roof * (1 - 1e-9)), (name, gpu, engine, precision, load)
        prompt, roof = (
            prefill_pass(work, one, layout, tokens=load * 16, cached=0, kv_format=kv).total_s
            for one in (machine, ideal)
        )
        assert np.all(prompt >= roof * (1 - 1e-9)), (name, gpu, engine, precision, load)


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_makes_more_than_its_peaks(seed: int) -> None:
    name, gpu, engine, precision, _ = asked(1000 + seed)
    draw = random.Random(seed)
    lengths = {
        "isl": draw.choice((128, 4096)),
        "osl": draw.choice((2, 64, 512)),
        "concurrency": draw.choice((1, 16, 256)),
    }
    try:
        found = tl.fit(name, f"{gpu}:2", engine=engine, precision=precision or None, **lengths)
    except InputError:
        return  # the engine does not run this there
    speed = found.to_dict().get("speed", {})
    if "mfu" in speed:
        assert 0 < speed["mfu"]["low"] <= speed["mfu"]["value"] <= speed["mfu"]["high"] <= 1.0 + 1e-9


def test_a_prefill_that_terms_put_beyond_the_peak_is_held_at_it() -> None:
    # terms carried over from another card said 1.06 of the datasheet; without the roof this pass takes 36.6 ms
    model, cluster = load_model("llama-2-13b"), Cluster.of(find("h100-nvl-94gb"), 2)
    work = model_work(model, cluster.accelerator)
    machine = Machine.serving(cluster, work=work, engine="sglang")
    found = prefill_pass(work, machine, Layout(tp=2), tokens=2048, cached=0, kv_format=catalogue.get("bf16"))
    assert float(found.computing_s) <= float(found.total_s)
    np.testing.assert_allclose(sum(found.lines.values()), found.total_s)
    np.testing.assert_allclose(sum(found.resources.values()), found.total_s)


def test_units_that_an_engine_multiplies_in() -> None:
    # GeForce halves FP16 with sums in FP32: 165.2 beside 330.3 TFLOP/s with sums in FP16 and 660.6 TOP/s of INT8 (RTX 4090)
    cluster = Cluster.of(find("rtx-4090"), 1)
    plain, own = Machine.of(cluster, "vllm"), Machine.of(cluster, "llama.cpp")
    assert plain.roof_flops("bf16") == pytest.approx(165.2e12)
    assert own.roof_flops("bf16") == pytest.approx(330.3e12, rel=1e-3)
    assert own.roof_flops("bf16", 4.5) == pytest.approx(660.6e12, rel=1e-3)
    # workstation and data-centre cards sum in FP32 at the full rate
    for name in ("rtx-6000-ada", "h100-sxm"):
        full = Machine.of(Cluster.of(find(name), 1), "llama.cpp")
        assert full.roof_flops("bf16") == pytest.approx(
            Machine.of(Cluster.of(find(name), 1)).roof_flops("bf16"), rel=0.01
        )
