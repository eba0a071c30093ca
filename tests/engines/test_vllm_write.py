"""A plan written as a vLLM command, and read back as itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.read import read
from trilemma.engines.vllm.write import write
from trilemma.errors import InputError
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions

degrees = st.sampled_from((1, 2, 3, 4, 8, 16))
names = st.text(st.sampled_from("abcXYZ019-_./"), min_size=1, max_size=20).filter(lambda text: text[0] not in "-/.")
optional_flags = st.none() | st.booleans()


def counts(most: int = 2**20) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(1, most)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, dp, cp = draw(degrees), draw(degrees), draw(st.sampled_from((1, 2)))
    return Layout(
        tp=tp, dp=dp, cp=cp, pp=draw(degrees), dcp=draw(degrees), ep=tp * dp * cp if draw(st.booleans()) else 1
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(st.characters(min_codepoint=32, exclude_categories=("Cs",)), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(("alpha", "beta_b", "c")), json_values, min_size=1, max_size=3)

extras: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "enable-lora": st.booleans(),
        "max-loras": st.integers(1, 64),
        "load-format": st.sampled_from(("dummy", "auto", "runai_streamer")),
        "hf-overrides": objects,
        "compilation-config": objects,
        "kv-cache-dtype-skip-layers": st.lists(names, min_size=1, max_size=3),
        "kv-offloading-size": st.floats(0, 1e4, allow_nan=False),
        "distributed-executor-backend": st.sampled_from(("mp", "ray")),
        "optimization-level": st.integers(1, 3),
    },
)


@st.composite
def options(draw: st.DrawFn) -> ServeOptions:
    sizes = st.none() | st.lists(st.integers(1, 512), max_size=6).map(tuple)
    return ServeOptions(
        memory_fraction=draw(st.none() | st.floats(0.01, 1.0)),
        kv_cache_bytes=draw(counts(2**45)),
        context=draw(counts(2**24)),
        max_seqs=draw(counts(65536)),
        max_batched_tokens=draw(counts()),
        block_size=draw(st.sampled_from((None, 16, 32, 64, 128))),
        dtype=draw(st.sampled_from((None, "bfloat16", "float16", "float32"))),
        kv_dtype=draw(st.sampled_from((None, "fp8", "fp8_e5m2", "nvfp4"))),
        quantization=draw(st.sampled_from((None, "fp8", "awq", "modelopt_fp4"))),
        eager=draw(st.booleans()),
        prefix_caching=draw(optional_flags),
        chunked_prefill=draw(optional_flags),
        cuda_graph_sizes=draw(sizes),
        multimodal_limits=draw(st.none() | st.dictionaries(st.sampled_from(("image", "video")), st.integers(0, 9))),
        text_only=draw(st.booleans()),
        mamba_cache_mode=draw(st.sampled_from((None, "align", "none"))),
        cpu_offload_bytes=draw(st.integers(0, 2**45)),
        extra=draw(extras),
    )


drafts = st.none() | st.builds(
    Draft,
    method=st.sampled_from(("mtp", "eagle", "eagle3", "draft", "ngram", "suffix", "dflash")),
    tokens=st.integers(1, 64),
    model=st.none() | names.filter(lambda name: name != "ngram"),
)


@given(layout=layouts(), options=options(), draft=drafts, model=names)
def test_what_is_written_reads_back_as_the_same_plan(
    layout: Layout, options: ServeOptions, draft: Draft | None, model: str
) -> None:
    plan = Plan(pools=(Pool(layout=layout, options=options, draft=draft),))
    words = write(model=model, plan=plan)
    found = read(words)
    assert found.plan == plan
    assert found.model == model
    assert found.unknown_flags == ()


def test_nothing_decided_nothing_written() -> None:
    assert write(model="org/model", plan=Plan()) == ["vllm", "serve", "org/model"]


def test_order_is_fixed() -> None:
    pool = Pool(
        layout=Layout(tp=8, ep=8),
        options=ServeOptions(memory_fraction=0.9, context=32768, kv_dtype="fp8", prefix_caching=False),
        draft=Draft(method="mtp", tokens=1),
    )
    assert write(model="org/model", plan=Plan(pools=(pool,))) == [
        "vllm", "serve", "org/model", "--tensor-parallel-size", "8", "--enable-expert-parallel", "--kv-cache-dtype", "fp8",
        "--max-model-len", "32768", "--gpu-memory-utilization", "0.9", "--no-enable-prefix-caching",
        "--speculative-config", '{"method":"mtp","num_speculative_tokens":1}',
    ]  # fmt: skip


def test_graph_sizes_take_the_flag_that_the_version_has() -> None:
    pools = (Pool(options=ServeOptions(cuda_graph_sizes=(1, 2))),)
    old = Plan(engine=EngineRef(version="0.8.5"), pools=pools)
    assert write(model="m", plan=old)[3:] == ["--compilation-config", '{"cudagraph_capture_sizes":[1,2]}']
    assert write(model="m", plan=Plan(pools=pools))[3:] == ["--cudagraph-capture-sizes", "1", "2"]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan(engine=EngineRef(name="sglang")), "engine is vllm"),
        (Plan(pools=(Pool(role="train"),)), "training"),
        (Plan(pools=(Pool(layout=Layout(tp=4, ep=2)),)), "--ep 2 is neither"),
        (Plan(pools=(Pool(layout=Layout(tp=np.array([1, 2]))),)), "one plan"),
        (Plan(pools=(Pool(), Pool())), "2 pools"),
        (
            Plan(engine=EngineRef(version="0.10.0"), pools=(Pool(layout=Layout(tp=2, dcp=2)),)),
            "take a version from 0.11.0",
        ),
        (Plan(pools=(Pool(options=ServeOptions(extra={"no-such": 1})),)), "no-such"),
        (Plan(pools=(Pool(options=ServeOptions(extra={"config": "/etc/passwd"})),)), "config"),
        (Plan(pools=(Pool(options=ServeOptions(dtype="a\0b")),)), "takes no"),
        (Plan(pools=(Pool(options=ServeOptions(extra={"revision": "a\0b"})),)), "control"),
    ],
)
def test_what_vllm_cannot_run_is_refused(plan: Plan, says: str) -> None:
    with pytest.raises(InputError, match=says):
        write(model="m", plan=plan)


@pytest.mark.parametrize("model", ["", "-x", "a\nb"])
def test_model_names_that_are_no_argument(model: str) -> None:
    with pytest.raises(InputError, match="model name"):
        write(model=model, plan=Plan())


def test_every_flag_written_is_in_the_table() -> None:
    pool = Pool(layout=Layout(tp=2, pp=2, dp=2, cp=2, dcp=2, ep=8), options=ServeOptions(eager=True, text_only=True))
    flags = [word[2:] for word in write(model="m", plan=Plan(pools=(pool,))) if word.startswith("--")]
    assert len(flags) == 8
    assert set(flags) <= set(table().flags)
