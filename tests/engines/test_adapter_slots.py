"""Slots for adapters are reserved at start: slots · rank · (in + out) for every linear layer."""

from __future__ import annotations

from typing import Any

import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.sglang.read import read
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB


def _start(engine: str, model: str, *, tp: int = 1, pp: int = 1, version: str | None = None, **extra: Any) -> StartUp:
    return engines.get(engine).start_up(
        model=load_model(model), accelerator=find("h200-sxm"), layout=Layout(tp=tp, pp=pp), version=version,
        options=ServeOptions(context=4096, extra={name.replace("_", "-"): value for name, value in extra.items()}),
    )  # fmt: skip


def _slots(start: StartUp) -> tuple[float, float, float]:
    line = start.ledger["adapter"]
    return float(line.low), float(line.bytes), float(line.high)


def test_slots_of_every_linear_layer_as_vllm_makes_them() -> None:
    """Llama-3.1-8B, eight slots of rank 256: 81,920 rows in and out a layer of 32, 16 bits: 10.0 GiB; the vocabulary may add."""
    low, value, high = _slots(_start("vllm", "llama-3.1-8b", enable_lora=True, max_loras=8, max_lora_rank=256))
    assert low == 8 * 256 * 81920 * 32 * 2 == 10 * GIB
    vocabulary = 8 * 256 * (128256 + 4096) * 2 * 2
    assert high == pytest.approx(low + vocabulary)
    assert low < value < high


def test_slots_leave_the_cache_that_much_less() -> None:
    bare = _start("vllm", "qwen3-32b", tp=2)
    held = _start("vllm", "qwen3-32b", tp=2, enable_lora=True, max_loras=4, max_lora_rank=64)
    lost = float(bare.pool.available_bytes) - float(held.pool.available_bytes)
    assert lost == pytest.approx(_slots(held)[1])
    assert float(held.load_peak_bytes) - float(bare.load_peak_bytes) == pytest.approx(lost)


def test_ranks_hold_one_half_of_each_adapter_whole_unless_fully_sharded() -> None:
    """Of layers cut along columns A is whole on every rank, B is cut; along rows the other way round."""
    asked = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32}
    one, two = (_slots(_start("vllm", "llama-3.1-8b", tp=tp, **asked))[0] for tp in (1, 2))
    sharded = _slots(_start("vllm", "llama-3.1-8b", tp=2, fully_sharded_loras=True, **asked))[0]
    whole = {"q": 4096, "k": 4096, "v": 4096, "o": 4096, "gate": 4096, "up": 4096, "down": 4096}
    assert two == one / 2 + 2 * 32 * sum(whole.values()) * 32 * 2 / 2
    assert sharded == one / 2


def test_stages_hold_the_slots_of_their_layers() -> None:
    one, four = (
        _slots(_start("vllm", "llama-3.1-70b", tp=2, pp=pp, enable_lora=True, max_lora_rank=64))[0] for pp in (1, 4)
    )
    assert four == pytest.approx(one / 4)


@pytest.mark.parametrize(("version", "more"), [("0.10.0", False), ("0.12.0", True)])
def test_experts_have_slots_since_kernels_take_them(version: str, more: bool) -> None:
    """FusedMoEWithLoRA came with vLLM 0.11.1 (pull request 21229)."""
    low, _, _ = _slots(_start("vllm", "qwen3-30b-a3b", version=version, enable_lora=True))
    assert (low > GIB) == more


@pytest.mark.parametrize(
    ("words", "rank", "says"),
    [
        ("--lora-paths a=./a --max-lora-rank 64 --lora-target-modules all", 64, ()),
        ("--enable-lora --max-loras-per-batch 8 --max-lora-rank 64 --lora-target-modules all", 64, ()),
        ("--lora-paths a=./a", 16, ("assumed-adapters",)),
    ],
)
def test_sglang_reserves_slots_for_a_batch_of_adapters(words: str, rank: int, says: tuple[str, ...]) -> None:
    """python/sglang/srt/lora/mem_pool.py: buffers of max_loras_per_batch (8) for every target module."""
    command = read(["python", "-m", "sglang.launch_server", "--model-path", "llama-3.1-8b", *words.split()])
    start = engines.get("sglang").start_up(
        model=load_model("llama-3.1-8b"), accelerator=find("h100-sxm"), layout=Layout(),
        options=command.plan.pool.options,
    )  # fmt: skip
    assert _slots(start)[0] == 8 * rank * 81920 * 32 * 2
    assert tuple(note.code for note in start.warnings if note.code == "assumed-adapters") == says
    assert not any(warning.code == "not-counted" for warning in command.warnings)


def test_targets_named_are_those_that_have_slots() -> None:
    only = _slots(_start("vllm", "llama-3.1-8b", enable_lora=True, lora_target_modules=["qkv_proj"]))
    assert only == (16 * (8192 + 5120 + 5120) * 32 * 2,) * 3
