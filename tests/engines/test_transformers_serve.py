"""Transformers as a server: layers in turn, a cache that grows, whole prompts in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.transformers_serve.read import read
from trilemma.engines.transformers_serve.write import write
from trilemma.engines.verdict import likeliest
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB


def _start(
    model: str = "llama-3.1-8b",
    gpu: str = "rtx-4090",
    layout: Layout | None = None,
    *,
    version: str = "5.24",
    **options: Any,
) -> StartUp:
    return engines.get("transformers-serve").start_up(
        model=load_model(model),
        accelerator=find(gpu),
        layout=layout or Layout(),
        options=ServeOptions(**options),
        version=version,
    )  # fmt: skip


def test_cache_of_one_request() -> None:
    start = _start(context=8192)
    assert float(start.ledger["kv_cache"].bytes) == 8192 * 131072
    assert float(start.ledger["weights"].bytes) / GIB == pytest.approx(14.96, abs=0.01)
    assert start.max_seqs == 1


def test_version_4_loads_in_float32() -> None:
    old, new = _start(version="4.50", context=4096), _start(context=4096)
    assert float(old.ledger["weights"].bytes) == pytest.approx(2 * float(new.ledger["weights"].bytes))
    told = _start(version="4.50", context=4096, dtype="bfloat16")
    assert float(told.ledger["weights"].bytes) == float(new.ledger["weights"].bytes)


def test_whole_prompts_need_room() -> None:
    short, long = _start(context=4096), _start(context=65536)
    assert likeliest(short)[0] == "ok"
    assert likeliest(long)[0] != "ok"
    paged = _start(context=65536, extra={"continuous-batching": True})
    assert float(paged.ledger["activations"].bytes) < float(long.ledger["activations"].bytes)


def test_layers_over_cards_and_tables() -> None:
    pp = np.array([1, 2, 4])
    whole = engines.get("transformers-serve").start_up(
        model=load_model("llama-3.1-70b"), accelerator=find("h100-sxm"), layout=Layout(pp=pp),
        options=ServeOptions(context=4096), version="5.24",
    )  # fmt: skip
    for row, degree in enumerate(pp):
        one = _start("llama-3.1-70b", "h100-sxm", Layout(pp=int(degree)), context=4096)
        assert float(whole.pool.available_bytes[row]) == pytest.approx(float(one.pool.available_bytes))


def test_commands_both_ways() -> None:
    command = read(
        [
            "transformers",
            "serve",
            "org/model",
            "--dtype",
            "bfloat16",
            "--continuous-batching",
            "--cb-max-memory-percent",
            "0.5",
        ]
    )
    assert command.facts["gpus"] == "every"
    assert command.plan.pool.options.memory_fraction == 0.5
    assert read(write(model="org/model", plan=command.plan)).plan == command.plan
    one = read(["transformers", "serve", "org/model", "--device", "cuda:0"])
    assert one.facts["gpus"] == 1


def test_plans_that_it_cannot_run() -> None:
    with pytest.raises(InputError, match="in turn"):
        write(model="m/x", plan=Plan(engine=EngineRef(name="transformers"), pools=(Pool(layout=Layout(tp=2)),)))
    with pytest.raises(InputError, match="names no model"):
        read(["transformers", "serve"])
