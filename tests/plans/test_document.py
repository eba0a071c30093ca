"""A plan as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.plans.document import plan_from_document, plan_to_document

whole = st.integers(1, 2**40)
texts = st.text(max_size=12)
extra_values = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
plans = st.builds(
    Plan,
    engine=st.builds(EngineRef, name=texts, version=st.none() | texts),
    pools=st.lists(
        st.builds(
            Pool,
            role=st.sampled_from(("serve", "prefill", "decode", "encode", "train")),
            layout=st.builds(Layout, **{name: st.integers(1, 2**20) for name in ("tp", "pp", "dp", "ep", "cp", "dcp")}),
            options=st.builds(
                ServeOptions,
                memory_fraction=st.none() | st.floats(0, 1),
                kv_cache_bytes=st.none() | whole,
                context=st.none() | whole,
                max_seqs=st.none() | whole,
                max_batched_tokens=st.none() | whole,
                block_size=st.none() | whole,
                dtype=st.none() | texts,
                kv_dtype=st.none() | texts,
                quantization=st.none() | texts,
                eager=st.booleans(),
                prefix_caching=st.none() | st.booleans(),
                chunked_prefill=st.none() | st.booleans(),
                cuda_graph_sizes=st.none() | st.lists(whole, max_size=4).map(tuple),
                multimodal_limits=st.none() | st.dictionaries(texts, whole, max_size=3),
                text_only=st.booleans(),
                mamba_cache_mode=st.none() | texts,
                cpu_offload_bytes=whole,
                extra=st.dictionaries(texts, extra_values, max_size=3),
            ),
            draft=st.none()
            | st.builds(
                Draft, method=texts, tokens=whole, model=st.none() | texts, acceptance=st.none() | st.floats(0, 1)
            ),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)


@pytest.mark.slow
@given(plan=plans)
def test_round_trip_is_identity(plan: Plan) -> None:
    document = json.loads(json.dumps(plan_to_document(plan)))
    assert plan_from_document(document) == plan


def test_tables_of_plans_keep_their_arrays() -> None:
    plan = Plan(
        pools=(Pool(layout=Layout(tp=np.array([1, 2, 4])), options=ServeOptions(max_seqs=np.array([8, 16, 32]))),)
    )
    found = plan_from_document(json.loads(json.dumps(plan_to_document(plan)))).pool
    assert np.array_equal(found.layout.tp, [1, 2, 4])
    assert found.options.max_seqs is not None
    assert np.array_equal(found.options.max_seqs, [8, 16, 32])


def test_every_field_of_every_class_is_carried() -> None:
    options = dict.fromkeys(ServeOptions.__dataclass_fields__)
    document = plan_to_document(Plan(pools=(Pool(draft=Draft(method="mtp")),)))
    for name in options:
        wrong = json.loads(json.dumps(document))
        wrong["pools"][0]["options"][name] = object
        with pytest.raises(InputError, match=name):
            plan_from_document(wrong)


GOOD: dict[str, Any] = plan_to_document(Plan(pools=(Pool(draft=Draft(method="mtp")),)))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("engine",), None, "plan.engine is not an object"),
        (("pools",), [], "1 to 64"),
        (("pools",), "x", "1 to 64"),
        (("extra_key",), 1, "unknown key 'extra_key'"),
        (("pools", 0, "role"), "boss", "role"),
        (("pools", 0, "role"), [], "role"),
        (("pools", 0, "layout", "tp"), 0, "`tp` 0"),
        (("pools", 0, "layout", "tp"), True, "whole number"),
        (("pools", 0, "layout", "tp"), 2**70, "whole number"),
        (("pools", 0, "layout", "tp"), [], "list of 1"),
        (("pools", 0, "layout", "qp"), 1, "unknown key 'qp'"),
        (("pools", 0, "options", "memory_fraction"), "x", "not a number"),
        (("pools", 0, "options", "memory_fraction"), float("nan"), "not a number"),
        (("pools", 0, "options", "memory_fraction"), 10**400, "not a number"),
        (("pools", 0, "options", "extra"), {"a": float("inf")}, "not a number"),
        (("pools", 0, "draft"), {"tokens": 1}, "lacks method"),
    ],
)
def test_wrong_documents_name_the_key(path: tuple[Any, ...], value: Any, says: str) -> None:
    document = json.loads(json.dumps(GOOD))
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(InputError) as error:
        plan_from_document(document)
    assert says in str(error.value)


def test_deep_extra_is_refused_without_recursion() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"a": deep}
    document = json.loads(json.dumps(GOOD))
    document["pools"][0]["options"]["extra"] = deep
    with pytest.raises(InputError, match="nests deeper"):
        plan_from_document(document)
    # Unwound by hand: the interpreter would recurse through it otherwise.
    while deep:
        deep = deep.pop("a")


def test_derived_keys_for_readers_are_allowed() -> None:
    assert plan_from_document({**GOOD, "summary": "TP 1", "context": 8192}) == plan_from_document(GOOD)
