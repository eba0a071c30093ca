"""SGLang: pools against printed start-up lines, the default static share, flags by version, command lines both ways."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.sglang.facts import for_version
from trilemma.engines.sglang.flags import table
from trilemma.engines.sglang.read import read
from trilemma.engines.sglang.write import write
from trilemma.engines.verdict import likeliest
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB

#: Eight attention replicas over common experts on one node.
_REPLICAS = Layout(tp=1, dp=8, ep=8)
_SHARED = {"enable-dp-attention": True}


def _start(model: str, gpu: str, layout: Layout | None = None, *, version: str = "0.5.10", **options: Any) -> StartUp:
    return engines.get("sglang").start_up(
        model=load_model(model),
        accelerator=find(gpu),
        layout=layout or Layout(),
        options=ServeOptions(**options),
        version=version,
    )


@pytest.mark.parametrize(
    ("model", "gpu", "layout", "version", "options", "gib", "tokens"),
    [
        # vllm-project/vllm issue 21348, both engines on 4 x H100.
        ("Qwen/Qwen3-235B-A22B-FP8", "h100-sxm", Layout(tp=4), "0.4.9", {"memory_fraction": 0.93}, 16.46, 367404),
        # sgl-project/sglang pull request 11309, before and after.
        ("deepseek-ai/DeepSeek-V3.2", "b200", _REPLICAS, "0.5.3", {"memory_fraction": 0.8, "extra": _SHARED}, 54.52, 1462784),
        ("deepseek-ai/DeepSeek-V3.2", "b200", _REPLICAS, "0.5.4", {"extra": _SHARED}, 43.67, 975424),
    ],
)  # fmt: skip
def test_printed_pools(
    model: str, gpu: str, layout: Layout, version: str, options: dict[str, Any], gib: float, tokens: int
) -> None:
    pool = _start(model, gpu, layout, version=version, **options).pool
    assert float(pool.available_bytes) / GIB == pytest.approx(gib, rel=0.04)
    assert float(pool.available_low_bytes) < gib * GIB < float(pool.available_high_bytes)
    assert float(pool.tokens) == pytest.approx(tokens, rel=0.04)


def test_indexer_cache_that_was_not_counted() -> None:
    # 61 layers · 132 bytes · 1,462,784 tokens = 10.97 GiB beside the printed pool, and 61 · (656 + 132) bytes a token after.
    before = _start("deepseek-ai/DeepSeek-V3.2", "b200", _REPLICAS, version="0.5.3", memory_fraction=0.8, extra=_SHARED)
    after = _start("deepseek-ai/DeepSeek-V3.2", "b200", _REPLICAS, version="0.5.4", extra=_SHARED)
    rates = [float(one.pool.bytes_per_token_per_gpu) for one in (before, after)]
    assert rates == [61 * 656, 61 * (656 + 132)]
    assert (rates[1] - rates[0]) * 1462784 / GIB == pytest.approx(10.97, abs=0.01)


@pytest.mark.parametrize(
    ("gpu", "layout", "version", "options", "share"),
    [
        ("h100-sxm", Layout(tp=8), "0.4.1", {}, 0.81),
        ("h200-sxm", Layout(tp=8), "0.4.6", {}, (143771 - 13312) / 143771),
        ("h100-sxm", Layout(tp=1), "0.4.8", {}, round((81559 - 9728 - 512) / 81559, 3)),
        # 512 + 8192 · 1.5 + 512 · 2 + 1024 MiB on eight ranks of an H100.
        ("h100-sxm", Layout(tp=8), "0.5.4", {}, round((81559 - 14848) / 81559, 3)),
        # Attention replicas: 512 · 8 · (3 + 1.5) MiB more, 16,384 tokens in a chunk.
        ("b200", _REPLICAS, "0.5.4", {"extra": _SHARED}, 0.751),
    ],
)
def test_default_static_share(gpu: str, layout: Layout, version: str, options: dict[str, Any], share: float) -> None:
    start = _start("deepseek-ai/DeepSeek-R1", gpu, layout, version=version, **options)
    assert start.memory_fraction == pytest.approx(share, abs=0.002)


def test_graphs_of_larger_batches_need_more_room() -> None:
    # 6.22 GB for batches up to 256 on 8 x H200 and about 3 GB less at 160 (sgl-project/sglang pull request 5893).
    small, large = (
        _start("deepseek-ai/DeepSeek-R1", "h200-sxm", Layout(tp=8), version="0.4.6", cuda_graph_sizes=sizes)
        for sizes in ((160,), (256,))
    )
    graphs = [start.ledger["cuda_graphs"] for start in (small, large)]
    assert float(graphs[1].low) < 6.22 * GIB < float(graphs[1].high)
    assert 1.0 < float(graphs[1].bytes - graphs[0].bytes) / GIB < 4.0
    assert float(large.capacity_bytes - large.budget_bytes) / GIB < 18


def test_share_below_the_weights_leaves_no_pool() -> None:
    start = _start("deepseek-ai/DeepSeek-R1", "h200-sxm", Layout(tp=8), memory_fraction=0.5)
    assert float(start.pool.available_bytes) < 0
    assert likeliest(start)[0] == "oom_profile"
    assert engines.get("sglang").feasible_fraction(start) is not None


def test_sized_after_capture_gives_the_pool_the_reserve() -> None:
    plain = _start("llama-3.1-8b", "h100-sxm", version="0.5.23")
    after = _start("llama-3.1-8b", "h100-sxm", version="0.5.23", extra={"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"})
    assert float(after.pool.available_bytes) > float(plain.pool.available_bytes) + 5 * GIB
    assert any(warning.code == "sized-after-capture" for warning in after.warnings)


def test_states_of_recurrent_layers_get_their_share() -> None:
    start = _start("Qwen/Qwen3.6-35B-A3B", "h200-sxm", version="0.5.10")
    states, tokens = (float(start.ledger[name].bytes) for name in ("state_cache", "kv_cache"))
    assert states / tokens == pytest.approx(0.9, rel=0.02)


def test_tables_and_single_plans_agree() -> None:
    model, card = load_model("llama-3.1-70b"), find("h100-sxm")
    tp, pp = np.array([2, 4, 8, 4]), np.array([1, 1, 1, 2])
    whole = engines.get("sglang").start_up(
        model=model, accelerator=card, layout=Layout(tp=tp, pp=pp), options=ServeOptions(), version="0.5.10"
    )
    for row in range(len(tp)):
        one = _start("llama-3.1-70b", "h100-sxm", Layout(tp=int(tp[row]), pp=int(pp[row])))
        assert float(whole.pool.available_bytes[row]) == pytest.approx(float(one.pool.available_bytes))
        assert float(whole.pool.tokens[row]) == one.pool.tokens


def test_versions_not_known_are_widened_and_said() -> None:
    newer, none = for_version("9.9.9"), for_version(None)
    assert not newer.known
    assert newer.warnings[0].code == "newer-engine"
    assert not none.known
    assert none.warnings[0].code == "assumed-engine-version"
    assert newer.reserve == none.reserve
    known, unknown = (_start("llama-3.1-8b", "h100-sxm", version=version) for version in ("0.5.23", "9.9.9"))
    width = [float(one.ledger["activations"].high - one.ledger["activations"].bytes) for one in (known, unknown)]
    assert width[1] > width[0]


def test_command_with_attention_replicas() -> None:
    command = read(
        shlex.split(
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --dp 8 --enable-dp-attention"
            " --ep-size 8 --mem-fraction-static 0.85 --chunked-prefill-size 8192 --cuda-graph-max-bs 128"
            " --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
            " --speculative-num-draft-tokens 4 --kv-cache-dtype fp8_e4m3 --disable-radix-cache --host 0.0.0.0"
        ),
        version="0.5.10",
    )
    pool = command.plan.pool
    assert pool.layout == Layout(tp=1, dp=8, ep=8)
    assert pool.draft == Draft(method="mtp", tokens=3)
    assert (pool.options.memory_fraction, pool.options.max_batched_tokens) == (0.85, 8192)
    assert pool.options.prefix_caching is False
    assert pool.options.extra == {"enable-dp-attention": True, "cuda-graph-max-bs": 128}
    assert command.facts["server"] == {"host": "0.0.0.0"}
    assert not command.warnings
    again = read(write(model="deepseek-ai/DeepSeek-R1", plan=command.plan), version="0.5.10")
    assert again.plan == command.plan


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--cuda-graph-max-bs 64", "removed-flag"),
        ("--mem_fraction_static 0.8", "refused-flag"),
        ("--enable-hisparse", None),
    ],
)
def test_flags_of_the_newest_version(words: str, code: str | None) -> None:
    command = read(f"sglang serve --model-path m/x {words}".split(), version="0.5.23")
    codes = [warning.code for warning in command.warnings]
    assert (code in codes) if code else not {"unknown-flag", "refused-flag"} & set(codes)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--mem-fraction-static 85", "give 0.85"),
        ("--tp 8 --dp 3 --enable-dp-attention", "does not divide"),
        ("--context-length many", "not a whole number"),
    ],
)
def test_bad_values_name_the_remedy(words: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(f"sglang serve --model-path m/x {words}".split())


@pytest.mark.parametrize(
    "pool",
    [
        Pool(layout=Layout(tp=4), options=ServeOptions(context=8192, max_seqs=64, kv_dtype="fp8_e5m2")),
        Pool(layout=Layout(tp=2, pp=2), options=ServeOptions(memory_fraction=0.9, eager=True, dtype="bfloat16")),
        Pool(layout=Layout(tp=2, dp=4), options=ServeOptions(cuda_graph_sizes=(1, 2, 4), prefix_caching=False)),
        Pool(layout=Layout(tp=1, dp=8, ep=8), options=ServeOptions(extra={"enable-dp-attention": True})),
        Pool(draft=Draft(method="eagle3", tokens=4, model="org/head"), options=ServeOptions(quantization="fp8")),
    ],
)
def test_plans_come_back_from_their_command(pool: Pool) -> None:
    plan = Plan(engine=EngineRef(name="sglang", version="0.5.23"), pools=(pool,))
    assert read(write(model="org/model", plan=plan), version="0.5.23").plan == plan


def test_plans_that_sglang_cannot_run() -> None:
    with pytest.raises(InputError, match="engine is sglang"):
        write(model="m/x", plan=Plan())
    extra = Plan(engine=EngineRef(name="sglang"), pools=(Pool(options=ServeOptions(extra={"no-such": 1})),))
    with pytest.raises(InputError, match="no flag --no-such"):
        write(model="m/x", plan=extra)


def test_every_flag_is_sane() -> None:
    flags = table()
    assert len(flags.flags) > 500
    assert all(flag.since <= (flag.removed or flags.versions[-1]) for flag in flags.flags.values())


def test_one_request_of_full_length_is_told_where_no_context_was_stated() -> None:
    """A start without --context-length asks for a page; a request of 40,960 tokens takes 36 x 2 x 8 x 128 x 2 B of each."""
    start = engines.get("sglang").start_up(
        model=load_model("qwen3-8b"),
        accelerator=find("l40s"),
        layout=Layout(tp=1),
        options=ServeOptions(),
        version="0.5.10",
    )
    assert float(start.pool.need_bytes) < 2**20
    assert float(start.request_bytes) == 40960 * 36 * 2 * 8 * 128 * 2
