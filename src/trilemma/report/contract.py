"""The JSON documents that people script against, as types, and the JSON Schemas made from them.

The schemas under ``data/schemas`` are generated from these types by ``python -m trilemma.report.contract``; tests keep the
two equal and check real documents against them.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from trilemma.columns import columns_of
from trilemma.data.digest import DATA
from trilemma.errors import Caution
from trilemma.estimate.estimate import Bottleneck, CacheEstimate, MemoryEstimate, Remedy, SpeedEstimate
from trilemma.precision.documents import GateDocument, LabDocument, WatchDocument
from trilemma.search.training_questions import Gain, WaterfallStep


class Made(TypedDict):
    version: str
    data_digest: str


class VerdictDocument(TypedDict):
    stage: Literal["ok", "oom_load", "oom_profile", "kv_too_small", "oom_capture", "oom_runtime"]
    probability: float


class CostDocument(TypedDict):
    usd_per_hour: float
    usd_per_hour_low: float
    usd_per_hour_high: float
    usd_per_million_tokens: NotRequired[float]
    usd_per_million_tokens_low: NotRequired[float]
    usd_per_million_tokens_high: NotRequired[float]


class PowerDocument(TypedDict):
    watts: float
    joules_per_token: NotRequired[float]


class ComparisonDocument(TypedDict):
    name: str
    predicted: float
    low: float
    high: float
    measured: float
    where: str
    diverges: bool


class TargetDocument(TypedDict):
    """A latency asked for, and the probability that it holds by the error bar of the figure."""

    name: Literal["ttft", "tpot"]
    target_ms: float
    probability: float


class PoolCommand(TypedDict):
    pool: str
    replicas: int
    command: str


class Inputs(TypedDict):
    model: dict[str, Any]
    cluster: dict[str, Any]
    workload: dict[str, Any]
    plan: dict[str, Any]
    engine: dict[str, Any]


class EstimateDocument(TypedDict):
    schema: Literal["trilemma/estimate@1"]
    inputs: Inputs
    made_by: Made
    fits: bool
    verdict: VerdictDocument
    reason: str
    refused: NotRequired[list[str]]
    memory: MemoryEstimate
    kv_cache: NotRequired[CacheEstimate]
    speed: NotRequired[SpeedEstimate]
    bottleneck: NotRequired[Bottleneck]
    cost: NotRequired[CostDocument]
    power: NotRequired[PowerDocument]
    ranks: NotRequired[list[dict[str, Any]]]
    remedies: NotRequired[list[Remedy]]
    command: NotRequired[str]
    commands: NotRequired[list[PoolCommand]]
    targets: NotRequired[list[TargetDocument]]
    start_up: NotRequired[dict[str, Any]]
    measured: NotRequired[list[ComparisonDocument]]
    training_step: NotRequired[dict[str, Any]]
    host_memory: NotRequired[dict[str, Any]]
    training_run: NotRequired[dict[str, Any]]
    warnings: list[Caution]


class Rejected(TypedDict):
    why: str
    count: int


class PlansDocument(TypedDict):
    schema: Literal["trilemma/plans@1"]
    plans: list[EstimateDocument]
    pareto: list[int]
    searched: int
    legal: int
    fitting: int
    seconds: float
    rejected: list[Rejected]
    sensitivity: NotRequired[list[Gain]]
    waterfall: NotRequired[list[WaterfallStep]]
    least_gpus: NotRequired[dict[str, Any]]
    cheapest: NotRequired[dict[str, Any]]
    techniques: NotRequired[list[dict[str, Any]]]
    nearest: NotRequired[dict[str, Any]]


class _Line(TypedDict):
    name: str
    seconds: float


class SkippedRow(TypedDict):
    id: str
    why: str


class RowNotes(TypedDict):
    id: str
    what: list[str]


class PairOrderDocument(TypedDict):
    n: int
    agreement: float


class HoldoutDocument(TypedDict):
    columns: list[str]
    groups: int
    terms: list[str]
    uninformed: dict[str, int]


class BarDocument(TypedDict):
    bar: str
    met: bool
    value: float | None


class ValidationDocument(TypedDict):
    """``metrics`` maps a figure to its errors (n, median_ape, mape, p90_ape, bias, …), and "verdict" to its score."""

    schema: Literal["trilemma/validation@1"]
    kind: str
    rows: int
    used: int
    skipped: list[SkippedRow]
    metrics: dict[str, Any]
    by: dict[str, Any]
    macro: dict[str, Any]
    configs_used: int
    assumed: list[RowNotes]
    left_out: list[RowNotes]
    pair_order: NotRequired[PairOrderDocument]
    holdout: NotRequired[HoldoutDocument]
    made_by: Made
    required: NotRequired[list[BarDocument]]


#: Schema file → the type it is made from.
DOCUMENTS: dict[str, Any] = {
    "estimate": EstimateDocument,
    "plans": PlansDocument,
    "validation": ValidationDocument,
    "train-lab": LabDocument,
    "gate": GateDocument,
    "watch": WatchDocument,
}
SCHEMAS = DATA / "schemas"


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one document."""
    document = DOCUMENTS[name]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"trilemma {name}", **_schema(document)}


def _schema(kind: Any) -> dict[str, Any]:
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {
            "type": "object",
            "properties": {key: _schema(_required(hint)) for key, hint in hints.items()},
            "required": [key for key, hint in hints.items() if get_origin(hint) is not NotRequired],
        }
    if is_dataclass(kind):
        return _columns(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Mapping:  # name → seconds
        return _schema(list[_Line])
    if origin in (list, tuple):
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict or kind is dict:
        return {"type": "object"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one) for one in arguments]}
    if kind is Any:
        return {}
    if kind is type(None):
        return {"type": "null"}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}


def _columns(kind: Any) -> dict[str, Any]:
    """The schema of what `trilemma.columns.document_of` makes of a dataclass."""
    hints, required = get_type_hints(kind), []
    properties: dict[str, Any] = {}
    for name, told in columns_of(kind):
        name, _, end = name.partition(".")
        hint = float if end else hints[name] if name in hints else get_type_hints(getattr(kind, name).fget)["return"]
        stated = [one for one in get_args(hint) if one is not type(None)]
        optional = type(None) in get_args(hint)
        one = stated[0] if optional and len(stated) == 1 else hint
        if told["inline"]:
            inner = _columns(one)
            properties |= inner["properties"]
            required += inner["required"]
            continue
        key = told["key"] or name
        many = get_origin(one) is Mapping or (get_origin(one) is tuple and told["key"] != "items")
        properties[key] = {"type": "integer"} if told["whole"] else _schema(dict if told["explained"] and many else one)
        required += [] if optional or many or told["explained"] else [key]
    return {"type": "object", "properties": properties, "required": required}


def _required(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is NotRequired else hint


def write_schemas(folder: Path = SCHEMAS) -> None:
    """Write every schema under ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.schema.json").write_text(json.dumps(schema_of(name), indent=2) + "\n")


if __name__ == "__main__":
    write_schemas()
