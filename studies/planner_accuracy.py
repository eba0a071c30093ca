"""The same measured deployments put to two planners: errors of TTFT and TPOT side by side.

Deployments are drawn at random (seeded) from the rows of one tier that state both figures and name a card and an engine as
aiconfigurator does. Both tools are told the same: mean lengths (benchmarks of InferenceX draw them from 80 to 100 % of the
nominal ones), an 8-bit cache under checkpoints that multiply in 8 or 4 bits, the row's layout.

Ours answers twice: with the shipped terms, which were fitted to rows such as these, and with terms refitted without the
rows that share the deployment's card and engine. Tables of other publishers, to which nothing was fitted, are asked once.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planners import Aiconfigurator

from trilemma.errors import InputError
from trilemma.measured.assumptions import filled, parse_assumptions
from trilemma.measured.metrics import errors
from trilemma.measured.serving.speed.benches import kv_format_of
from trilemma.measured.serving.speed.judge import judge
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.serving.speed.refit import family_of
from trilemma.measured.tables import Row, UnusableRow, read_table

FIGURES = ("ttft_ms", "tpot_ms")
#: Columns whose values together are one deployment under one load.
_KEY = (
    "model", "precision_weights", "gpu", "engine", "version", "gpus", "tp", "pp", "ep", "dp", "isl", "osl",
    "concurrency_or_batch",
)  # fmt: skip
_THEIR_ENGINES = ("vllm", "sglang", "trtllm")
_THEIR_CARD = re.compile(r"[a-z]+\d+_(sxm|pcie)|gb\d+|l40s")
#: Models whose name in the tables is not the one under which aiconfigurator ships their configuration, or that of a model of
#: the very same shape.
_THEIR_MODELS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-405B-Instruct": "meta-llama/Meta-Llama-3.1-405B",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3-235B-A22B-Thinking-2507": "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-235B-A22B-Thinking-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-30B-A3B-Thinking-2507": "Qwen/Qwen3-30B-A3B",
}


@dataclass(kw_only=True, slots=True)
class Deployment:
    """One deployment under one load: what was measured and what each tool says, figure → milliseconds."""

    cells: Mapping[str, str]
    question: SpeedQuestion
    measured: dict[str, float] = field(default_factory=dict)
    shipped: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    theirs: dict[str, float] = field(default_factory=dict)
    successor: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def group(self) -> str:
        cells = self.cells
        precision = cells.get("precision_weights") or "as published"
        return f"{cells['model'].rpartition('/')[2]} {precision}, {cells['gpu']}, {cells['engine']}"

    @property
    def family(self) -> str:
        return family_of(self.question.model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A tool and where its answers are kept, by what it was asked; ``into`` names the figures of a `Deployment` that are its."""

    tool: Aiconfigurator
    answers: Path | None = None
    into: str = "theirs"


def answered(
    table: str,
    peers: Sequence[Peer],
    *,
    models: str | None,
    tier: str,
    number: int,
    seed: int,
    wanted: Callable[[Deployment], bool] | None = None,
) -> tuple[list[Deployment], list[Deployment]]:
    """``number`` random deployments of ``table``, and those ``wanted`` besides, with the answers of all tools.

    Raises `InputError` where the table has no such deployment.
    """
    rows = [row for row in read_table(table).rows if row.text("tier") == tier]
    deployments = _deployments(rows, models)
    eligible = [key for key, one in sorted(deployments.items()) if set(one.measured) == set(FIGURES) and _asked(one)]
    if not eligible:
        raise InputError(f"{table} has no deployment of tier {tier} with ttft_ms and tpot_ms that both tools know")
    drawn = random.Random(seed).sample(eligible, min(number, len(eligible)))
    extra = [key for key in eligible if wanted is not None and wanted(deployments[key])]
    _ask_theirs([deployments[key] for key in dict.fromkeys([*drawn, *extra])], peers, models)
    _ask_ours(rows, deployments, models, (("shipped", ()), ("held_out", ("gpu", "engine"))))
    return [deployments[key] for key in drawn], [deployments[key] for key in extra]


def answered_elsewhere(
    table: str,
    peers: Sequence[Peer],
    *,
    models: str | None,
    assume: Sequence[str],
    number: int,
    seed: int,
) -> list[Deployment]:
    """``number`` random deployments of another publisher's ``table`` that state a time per token (tiers A and B), with the
    answers of all tools; ``assume`` as for ``trilemma validate``.
    """
    read = read_table(table)
    told = filled(read.rows, parse_assumptions(assume, read.columns))
    rows = [row for row in told if row.text("tier") in ("A", "B")]
    deployments = _deployments(rows, models)
    eligible = [key for key, one in sorted(deployments.items()) if "tpot_ms" in one.measured and _asked(one)]
    drawn = random.Random(seed).sample(eligible, min(number, len(eligible)))
    _ask_theirs([deployments[key] for key in drawn], peers, models)
    _ask_ours(rows, deployments, models, (("shipped", ()),))
    return [deployments[key] for key in drawn]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row.text(column) for column in _KEY)


def _deployments(rows: Sequence[Row], models: str | None) -> dict[tuple[str, ...], Deployment]:
    found: dict[tuple[str, ...], Deployment] = {}
    for row in rows:
        if row.text("metric") not in FIGURES:
            continue
        try:
            question = read_speed_question(row, models)
        except (UnusableRow, InputError):
            continue
        one = found.setdefault(_key(row), Deployment(cells=row.cells, question=question))
        one.measured[row.text("metric")] = question.measured
    return found


def _asked(one: Deployment) -> bool:
    return one.cells["engine"] in _THEIR_ENGINES and _THEIR_CARD.fullmatch(one.cells["gpu"]) is not None


def _ask_ours(
    rows: Sequence[Row],
    deployments: Mapping[tuple[str, ...], Deployment],
    models: str | None,
    ways: Sequence[tuple[str, tuple[str, ...]]],
) -> None:
    for name, holdout in ways:
        judgements, _ = judge(rows, models_dir=models, holdout=holdout)
        for row, judgement in zip(rows, judgements, strict=True):
            if judgement.comparisons and (one := deployments.get(_key(row))) is not None:
                comparison = judgement.comparisons[0]
                getattr(one, name)[comparison.metric] = comparison.predicted


def _ask_theirs(deployments: Sequence[Deployment], peers: Sequence[Peer], models: str | None) -> None:
    # one card, engine and model after the other: the tools load their tables once for each
    asked = [(json.dumps(_jobs(one, models)), one) for one in sorted(deployments, key=lambda one: one.group)]
    for peer in peers:
        answers = peer.answers
        kept: dict[str, Any] = json.loads(answers.read_text()) if answers is not None and answers.exists() else {}
        new = [job for job in dict.fromkeys(job for job, _ in asked) if job not in kept]
        kept |= zip(new, peer.tool.estimates([json.loads(job) for job in new]) if new else (), strict=True)
        if answers is not None:
            answers.write_text(json.dumps(kept, indent=0))
        for job, one in asked:
            one.error = one.error or kept[job].get("error", "")
            setattr(one, peer.into, {figure: kept[job][figure] for figure in FIGURES if figure in kept[job]})


def _jobs(one: Deployment, models: str | None) -> list[dict[str, Any]]:
    """Arguments of their estimate, best first: the modes that the table's notes state, which are those of the other tool's own
    regression data, then those that it infers from the checkpoint. The notes call MXFP4 checkpoints NVFP4: there the
    checkpoint comes first.
    """
    question, cells = one.question, one.cells
    layout = question.layout
    asked: dict[str, Any] = {
        "model_path": _THEIR_MODELS.get(cells["model"], cells["model"]),
        "system_name": cells["gpu"],
        "backend_name": cells["engine"],
        "isl": round(question.isl),
        "osl": round(question.osl),
        "batch_size": max(1, round(question.concurrency / float(layout.dp))),
        "tp_size": int(layout.tp),
        "pp_size": int(layout.pp),
        "attention_dp_size": int(layout.dp),
    }
    stated: dict[str, Any] = {}
    if (modes := re.search(r"gemm=(\w+),moe=(\w+)", cells.get("notes", ""))) is not None:
        stated["gemm_quant_mode"] = modes[1]
    if one.family == "mixture":
        ep = int(layout.ep)
        asked |= {"moe_ep_size": ep, "moe_tp_size": int(layout.tp * layout.dp) // ep}
        stated |= {"moe_quant_mode": modes[2]} if modes is not None else {}
    ways = [{**asked, **stated}, asked]
    if question.precision.startswith("mxfp4"):
        ways.reverse()
    if models is not None and (folder := Path(models) / asked["model_path"].replace("/", "--")).is_dir():
        ways += [{**way, "model_path": str(folder)} for way in ways]  # checkpoints that it does not ship
    cache = [{"kvcache_quant_mode": "fp8"}] if kv_format_of(question.model).bits <= 8 else []
    return [{**way, **extra} for way in ways for extra in [*cache, {}]]


def error_rows(drawn: Sequence[Deployment]) -> list[list[str]]:
    """Cells of a table: figure, models, n, then median and mean error of each tool and each way of asking ours."""
    both = [one for one in drawn if one.theirs]
    found = []
    for figure in FIGURES:
        for family in ("all", "dense", "mixture"):
            members = [one for one in both if family in ("all", one.family)]
            if members:
                cells = [cell for name in _TOOLS for cell in _errors_of(members, name, figure)]
                found.append([figure.removesuffix("_ms").upper(), family, str(len(members)), *cells])
    return found


def group_rows(drawn: Sequence[Deployment]) -> list[list[str]]:
    """Cells of a table: group, n, median errors of TTFT and TPOT by each tool."""
    found = []
    for group in sorted({one.group for one in drawn if one.theirs}):
        members = [one for one in drawn if one.group == group and one.theirs]
        cells = [_errors_of(members, name, figure)[0] for figure in FIGURES for name in _TOOLS]
        found.append([group, str(len(members)), *cells])
    return found


def elsewhere_rows(name: str, drawn: Sequence[Deployment]) -> list[list[str]]:
    """Cells of a table: publisher, figure, n drawn and answered by both, then median, mean and bias of each tool."""
    found = []
    for figure in reversed(FIGURES):
        members = [one for one in drawn if figure in one.measured]
        both = [one for one in members if figure in one.theirs and figure in one.shipped]
        if both:
            cells = [cell for tool in ("theirs", "shipped") for cell in _errors_of(both, tool, figure)]
            found.append([name, figure.removesuffix("_ms").upper(), str(len(members)), str(len(both)), *cells])
    return found


def successor_rows(name: str, drawn: Sequence[Deployment], ours: str) -> list[list[str]]:
    """Cells of a table: table, figure, n that all tools answered, then median and mean of both others and of ``ours``."""
    found = []
    for figure in reversed(FIGURES):
        every = [one for one in drawn if all(figure in getattr(one, tool) for tool in ("successor", "theirs", ours))]
        every = [one for one in every if figure in one.measured]
        if every:
            tools = ("successor", "theirs", ours)
            cells = [cell for tool in tools for cell in _errors_of(every, tool, figure)[:2]]
            found.append([name, figure.removesuffix("_ms").upper(), str(len(every)), *cells])
    return found


_TOOLS = ("theirs", "shipped", "held_out")


def _errors_of(members: Sequence[Deployment], name: str, figure: str) -> tuple[str, str, str]:
    """(median, mean, bias) of the error as a share of the measured value."""
    statistics = errors(
        [getattr(one, name)[figure] for one in members], [one.measured[figure] for one in members]
    )  # fmt: skip
    assert statistics is not None
    return f"{statistics.median_ape:.1%}", f"{statistics.mape:.1%}", f"{statistics.bias:+.0%}"
