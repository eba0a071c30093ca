"""A plan as plain data (JSON) and back, field by field; reading is strict, for documents come from outside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.plans.plan import Draft, EngineRef, Layout, Plan, Pool, ServeOptions

#: Keys beside the plan's own that a document may carry for its reader; they are derived and not read back.
DERIVED = ("summary", "context")

_ROLES: tuple[str, ...] = get_args(Literal["serve", "prefill", "decode", "encode", "train"])
_MOST_POOLS = 64
_MOST_ROWS = 2**20
_MOST_TEXT = 4096
_MOST_DEPTH = 16
_MOST_NODES = 20_000

_Kind = Literal["text", "float", "whole", "wholes", "flag", "sizes", "counts", "extra"]
_OPTIONS: dict[str, _Kind] = {
    "memory_fraction": "float",
    "kv_cache_bytes": "whole",
    "context": "whole",
    "max_seqs": "wholes",
    "max_batched_tokens": "wholes",
    "block_size": "whole",
    "dtype": "text",
    "kv_dtype": "text",
    "quantization": "text",
    "eager": "flag",
    "prefix_caching": "flag",
    "chunked_prefill": "flag",
    "cuda_graph_sizes": "sizes",
    "multimodal_limits": "counts",
    "text_only": "flag",
    "mamba_cache_mode": "text",
    "cpu_offload_bytes": "whole",
    "extra": "extra",
}
_LAYOUT: dict[str, _Kind] = dict.fromkeys(("tp", "pp", "dp", "ep", "cp", "dcp", "vpp"), "wholes")
_DRAFT: dict[str, _Kind] = {"method": "text", "tokens": "whole", "model": "text", "acceptance": "float"}
_ENGINE: dict[str, _Kind] = {"name": "text", "version": "text"}


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """``{"engine": {…}, "pools": [{"role", "layout", "options", "draft", "replicas"}]}`` with every field that is set.

    A field that is None is absent. Arrays (a table of plans) become lists.
    """
    return {
        "engine": _fields(plan.engine),
        "pools": [
            {
                "role": pool.role,
                "layout": _fields(pool.layout),
                "options": _fields(pool.options),
                **({} if pool.draft is None else {"draft": _fields(pool.draft)}),
                **({} if pool.replicas == 1 else {"replicas": pool.replicas}),
            }
            for pool in plan.pools
        ],
    }


def plan_from_document(document: Mapping[str, Any]) -> Plan:
    """The plan of `plan_to_document`. Raises `InputError` naming the key that is missing, unknown or of a wrong kind."""
    _check_keys(document, ("engine", "pools"), (*DERIVED,), "plan")
    pools = document["pools"]
    if not isinstance(pools, list) or not 1 <= len(pools) <= _MOST_POOLS:
        raise InputError(f"plan.pools is not a list of 1 to {_MOST_POOLS} pools")
    engine = EngineRef(**_read(document["engine"], _ENGINE, "plan.engine", ("name",)))
    return Plan(engine=engine, pools=tuple(_pool(pool, f"plan.pools[{index}]") for index, pool in enumerate(pools)))


def _pool(document: Any, where: str) -> Pool:
    _check_keys(document, ("role", "layout", "options"), ("draft", "replicas"), where)
    role = document["role"]
    if role not in _ROLES:
        raise InputError(f"{where}.role {shorten(repr(role))} is none of {', '.join(_ROLES)}")
    draft = document.get("draft")
    return Pool(
        role=role,
        layout=Layout(**_read(document["layout"], _LAYOUT, f"{where}.layout", ())),
        options=ServeOptions(**_read(document["options"], _OPTIONS, f"{where}.options", ())),
        draft=None if draft is None else Draft(**_read(draft, _DRAFT, f"{where}.draft", ("method", "tokens"))),
        replicas=_whole(document.get("replicas", 1), f"{where}.replicas"),
    )


def _fields(value: Any) -> dict[str, Any]:
    found = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {name: one for name, one in found.items() if one is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _check_keys(document: Any, required: tuple[str, ...], optional: tuple[str, ...], where: str) -> None:
    if not isinstance(document, Mapping):
        raise InputError(f"{where} is not an object with {', '.join(required)}")
    missing = [key for key in required if key not in document]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}")
    unknown = [str(key) for key in document if key not in required and key not in optional]
    if unknown:
        raise InputError(
            f"{where} has the unknown key {shorten(unknown[0])!r}; known: {', '.join((*required, *optional))}"
        )


def _read(document: Any, kinds: Mapping[str, _Kind], where: str, required: tuple[str, ...]) -> dict[str, Any]:
    _check_keys(document, required, tuple(kinds), where)
    return {key: _value(value, kinds[key], f"{where}.{key}") for key, value in document.items() if value is not None}


def _value(value: Any, kind: _Kind, where: str) -> Any:
    read = {
        "text": _text, "float": _float, "whole": _whole, "wholes": _wholes, "flag": _flag, "sizes": _sizes,
        "counts": _counts, "extra": _extra,
    }[kind]  # fmt: skip
    return read(value, where)


def _wrong(value: Any, where: str, wanted: str) -> InputError:
    return InputError(f"{where} {shorten(repr(value)[:400])} is not {wanted}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise _wrong(value, where, "a text")
    return value


def _float(value: Any, where: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or abs(value) > 2**1000
        or not math.isfinite(value)
    ):
        raise _wrong(value, where, "a number")
    return float(value)


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**62:
        raise _wrong(value, where, "a whole number")
    return value


def _wholes(value: Any, where: str) -> Any:
    if not isinstance(value, list):
        return _whole(value, where)
    if not 1 <= len(value) <= _MOST_ROWS:
        raise InputError(f"{where} is not a list of 1 to {_MOST_ROWS:,} whole numbers")
    return np.array([_whole(one, where) for one in value], dtype=np.int64)


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")
    return value


def _sizes(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 8192:
        raise _wrong(value, where, "a list of whole numbers")
    return tuple(_whole(one, where) for one in value)


def _counts(value: Any, where: str) -> dict[str, int]:
    if not isinstance(value, Mapping) or len(value) > 64:
        raise _wrong(value, where, "an object of whole numbers")
    return {_text(key, where): _whole(one, f"{where}.{shorten(str(key))}") for key, one in value.items()}


def _extra(value: Any, where: str) -> dict[str, Any]:
    """Any JSON object within bounds of depth and size."""
    if not isinstance(value, Mapping):
        raise _wrong(value, where, "an object")
    seen = 0
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        node, depth = pending.pop()
        seen += 1
        if depth > _MOST_DEPTH or seen > _MOST_NODES:
            raise InputError(f"{where} nests deeper than {_MOST_DEPTH} or holds more than {_MOST_NODES:,} values")
        if isinstance(node, Mapping):
            pending.extend((one, depth + 1) for one in node.values())
        elif isinstance(node, list):
            pending.extend((one, depth + 1) for one in node)
        elif isinstance(node, float) and not math.isfinite(node):
            raise _wrong(node, where, "a number")
    return dict(value)
