"""LM Studio's ``lms load``: llama.cpp's memory under its own words."""

from __future__ import annotations

from typing import Any

import pytest

import trilemma as tl
from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.extract import extract
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions

STUDIO = engines.get("lm-studio")


def start(model: str = "qwen3-32b:q4_k_m", gpu: str = "rtx-4090", **options: Any) -> StartUp:
    return STUDIO.start_up(
        model=load_model(model), accelerator=find(gpu), layout=options.pop("layout", Layout()), options=ServeOptions(**options),
        version=options.pop("version", "0.4.0"),
    )  # fmt: skip


def test_all_layers_half_of_them_and_none() -> None:
    """lmstudio.ai/docs/cli/load: --gpu takes 0-1, off, max."""
    whole, half, none = (float(start(extra={"gpu": word}).ledger["weights"].bytes) for word in ("max", "0.5", "off"))
    assert none == 0
    assert half == pytest.approx(whole / 2, rel=0.05)
    assert start(extra={"gpu": "1"}).ledger["weights"].bytes == whole
    for word in ("1.5", "-1", "all", "nan"):
        with pytest.raises(InputError, match="none of max, off, auto"):
            start(extra={"gpu": word})


def test_memory_is_that_of_llama_cpp() -> None:
    ours = start(context=8192, max_seqs=1, extra={"gpu": "max"})
    theirs = engines.get("llama.cpp").start_up(
        model=load_model("qwen3-32b:q4_k_m"), accelerator=find("rtx-4090"), layout=Layout(), version="b7700",
        options=ServeOptions(context=8192, max_seqs=1, extra={"n-gpu-layers": "all", "fit": "off"}),
    )  # fmt: skip
    for name in ("weights", "kv_cache", "activations", "logits"):
        assert float(ours.ledger[name].bytes) == float(theirs.ledger[name].bytes)


def test_default_context_and_readers() -> None:
    found = start("llama-3.1-8b:q4_k_m")
    assert (found.context, found.max_seqs) == (4096, 4)
    assert float(found.ledger["kv_cache"].bytes) == 4096 * 131072  # one cache for all four


def test_commands_both_ways() -> None:
    engine, words = extract(["lms load qwen/qwen3-8b --gpu max --context-length 16384 --identifier mine -y"])
    command = STUDIO.read(words)
    assert (engine, command.model) == ("lm-studio", "qwen/qwen3-8b:q4_k_m")
    assert command.plan.pool.options.context == 16384
    assert command.unknown_flags == ()
    assert STUDIO.read(["lms", "load", "qwen/qwen3-8b@q8_0"]).model == "qwen/qwen3-8b:q8_0"
    assert STUDIO.read(["lms", "load", "openai/gpt-oss-20b"]).model == "openai/gpt-oss-20b"
    plan = Plan(
        engine=EngineRef(name="lm-studio"), pools=(Pool(options=ServeOptions(context=8192, extra={"gpu": "0.7"})),)
    )
    assert STUDIO.read(STUDIO.write(model="qwen/qwen3-8b@q4_k_m", plan=plan)).plan == plan


def test_models_of_mlx_are_sent_to_mlx() -> None:
    with pytest.raises(InputError, match=r"ask for mlx_lm\.server --model"):
        start("mlx-community/Qwen3-8B-4bit", "m4-max-64gb")
    with pytest.raises(InputError, match="cards in turn"):
        start(layout=Layout(tp=2))


def test_a_mix_is_written_as_it_is_asked_for() -> None:
    """lmstudio.ai/docs/cli/get: a variant is NAME@MIX."""
    found = tl.check("lms load qwen/qwen3-8b --gpu max", gpu="rtx-4090").to_dict()["command"]
    assert found == "lms load qwen/qwen3-8b@q4_k_m --gpu max"
    assert tl.check(found, gpu="rtx-4090").to_dict()["command"] == found


def test_tokens_of_a_step_have_no_flag() -> None:
    """lms load takes no evaluation batch size (lmstudio.ai/docs/cli/load): a plan that states one is not its command."""
    pool = Pool(layout=Layout(), options=ServeOptions(context=4096, max_batched_tokens=8192))
    with pytest.raises(InputError, match="no flag for the tokens of a step"):
        STUDIO.write(model="./m-Q4_K_M.gguf", plan=Plan(engine=EngineRef(name="lm-studio"), pools=(pool,)))
