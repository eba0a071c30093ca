"""JSON documents of ``precision train-lab``, ``precision gate`` and ``watch_numerics`` as types; schemas are made from them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class AlarmDocument(TypedDict):
    """``where``: layer and role (x activation, w weight, g output gradient), "" for the whole gradient."""

    step: int
    signal: str
    where: str
    value: float | None
    bound: float


class RecipeVerdictDocument(TypedDict):
    """Over all seeds; ``gap`` and ``final_loss`` are null where a seed stopped, ``gap_half_width95`` where seeds are too few."""

    recipe: str
    outcome: Literal["reference", "as good", "better", "worse", "blown up", "stopped"]
    final_loss: float | None
    gap: float | None
    gap_half_width95: float | None
    inside_seed_noise: bool
    since_step: int | None
    stops: dict[str, int]
    seeds: int
    earliest_alarm: AlarmDocument | None
    early_warning: float
    low_precision_share: float


class MitigationDocument(TypedDict):
    """``changes``: setting → {"from", "to"}."""

    recipe: str
    outcome: Literal["reference", "as good", "better", "worse", "blown up", "stopped"]
    gap: float | None
    low_precision_share: float
    changes: dict[str, Any]


class RegimeDocument(TypedDict):
    """``recipes`` best first; ``mitigations``: failing recipe → list of what did better."""

    regime: dict[str, Any]
    seed_noise: float | None
    recipes: list[RecipeVerdictDocument]
    mitigations: dict[str, list[MitigationDocument]]


class WarningDocument(TypedDict):
    spearman: float | None
    runs: int


class GradientDocument(TypedDict):
    norm: float | None
    reference_norm: float | None
    norm_ratio: float | None
    cosine: float | None


#: ``worst``: "role.figure" → value and layer; ``tensors`` (in lab.json): "layer.role" → all figures.
ProbeDocument = TypedDict(
    "ProbeDocument",
    {
        "step": int,
        "loss": float | None,
        "shadow_loss": float | None,
        "gradient": GradientDocument,
        "applied": bool,
        "worst": NotRequired[dict[str, Any]],
        "tensors": NotRequired[dict[str, Any]],
        "frozen_update%": NotRequired[float],
    },
)


class RunDocument(TypedDict):
    recipe: str
    regime: dict[str, Any]
    seed: int
    final_loss: float | None
    held_out_loss: float | None
    stopped_at: int | None
    skipped_steps: int
    low_precision_share: float
    cpu_s: float
    losses: list[float | None]
    probes: list[ProbeDocument]


class LabDocument(TypedDict):
    schema: Literal["trilemma/train-lab@1"]
    preset: str
    text: str
    regimes: list[RegimeDocument]
    early_warning: WarningDocument
    cpu_s: float
    runs: list[RunDocument]


class RunCounts(TypedDict):
    reference: int
    candidate: int


class GateDocument(TypedDict):
    """``gap`` and its interval are shares of the reference's loss; null where the data say nothing."""

    schema: Literal["trilemma/gate@1"]
    outcome: Literal["pass", "fail", "not enough data"]
    reason: str
    gap: float | None
    low: float | None
    high: float | None
    steps: int
    tail_steps: int
    runs: RunCounts
    needed_runs: int | None


class FindingDocument(TypedDict):
    """``module``: path in the model; ``tensor``: x, w or g of a layer, or the name of a parameter."""

    kind: Literal["overflow", "underflow", "dead_update", "not_finite", "parameter_not_finite", "gradient_not_finite"]
    module: str
    tensor: str
    step: int
    value: float | None
    bound: float | None
    says: str
    remedy: str


class WatchDocument(TypedDict):
    schema: Literal["trilemma/watch@1"]
    recipe: str
    passes: int
    steps: int
    findings: list[FindingDocument]
