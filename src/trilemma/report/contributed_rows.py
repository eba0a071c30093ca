"""Runs as rows of a measured table that can be given away: what ran and what was measured, nobody's names.

`validate` judges them. A row holds the catalogue's name of the model, the card, the plan, the load and one figure. Names, tags,
settings, revisions, machines and hours stay behind; the date is cut to its month. Runs of models that no catalogue knows are
left out.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError
from trilemma.runs.run import LedgerRun

#: Figure of a table ← names under which runs keep it, with the factor to the table's unit.
_SERVING = {
    "ttft_ms": (("ttft_ms", 1.0), ("ttft_s", 1e3)),
    "tpot_ms": (("tpot_ms", 1.0), ("tpot_s", 1e3)),
    "output_tok_s_total": (("output_tok_s_total", 1.0), ("output_tokens_per_s", 1.0)),
}
_TRAINING = {
    "iteration_s": (("step_s", 1.0), ("iteration_s", 1.0)),
    "tokens_per_s_per_gpu": (("tokens_per_s_per_gpu", 1.0),),
    "mfu": (("mfu", 1.0),),
    "peak_memory_gib": (("peak_memory_gib", 1.0),),
}
_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributedRows:
    """The table as text, and of how many runs nothing went into it."""

    text: str
    runs: int
    left_out: int


def contributed_rows(runs: Sequence[LedgerRun], *, training: bool) -> ContributedRows:
    """The rows of serving speed, or of ``training``, that ``runs`` with an estimate and figures give."""
    figures, columns = (_TRAINING, _training_cells) if training else (_SERVING, _serving_cells)
    rows: list[dict[str, Any]] = []
    told = 0
    for run in runs:
        cells = _cells(run, columns)
        found = [] if cells is None else [
            {**cells, ("measured_metric" if training else "metric"): metric, "value": f"{value:.6g}"}
            for metric, names in figures.items()
            if (value := _value(run.figures, names)) is not None
        ]  # fmt: skip
        told += bool(found)
        rows += [{"id": _id(row), **row} for row in found]
    if not rows:
        kind = "training" if training else "serving"
        raise InputError(f"no run of the ledger holds figures of {kind} beside an estimate of a model of the catalogue")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return ContributedRows(text=text.getvalue(), runs=told, left_out=len(runs) - told)


def _cells(run: LedgerRun, columns: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any] | None:
    """What the estimate says was asked; None for another kind of run, one that crashed, or a model of nobody's catalogue."""
    inputs = run.estimate.get("inputs")
    if run.status != "done" or not isinstance(inputs, Mapping):
        return None
    try:
        known = _public(str(inputs["model"]["name"]))
        if known is None:
            return None
        card = inputs["cluster"]
        return {
            "model": known, "gpu": card["accelerator"]["id"], "gpus": card["gpus"], **columns(inputs),
            "date": time.strftime("%Y-%m", time.gmtime(run.started_s)),
        }  # fmt: skip
    except (KeyError, TypeError, IndexError):  # the other kind of estimate, or one of another version
        return None


def _public(name: str) -> str | None:
    from trilemma.models.catalogue import entries, hub_id

    if name in entries():
        return name
    return name if any(name == hub_id(one) or name in entry.ids for one, entry in entries().items()) else None


def _serving_cells(inputs: Mapping[str, Any]) -> dict[str, Any]:
    (pool,), load, engine = inputs["plan"]["pools"], inputs["workload"], inputs["engine"]
    layout, quantised = pool["layout"], inputs["model"].get("quantization")
    return {
        "precision_weights": quantised or "bf16", "precision_kv": pool["options"].get("kv_dtype", ""),
        **{name: layout[name] for name in ("tp", "pp", "ep", "dp")}, "engine": engine["name"], "version": engine["version"],
        "isl": load["isl"], "osl": load["osl"], "concurrency_or_batch": load["concurrency"],
    }  # fmt: skip


def _training_cells(inputs: Mapping[str, Any]) -> dict[str, Any]:
    plan, load, cluster = inputs["plan"], inputs["workload"], inputs["cluster"]
    layout = plan["layout"]
    return {
        "gpus_per_node": cluster["gpus_per_node"], "framework": _framework(plan), "precision": plan["recipe"]["name"],
        "seq_len": load["seq"], "micro_batch": plan["micro_batch"], "global_batch": load["global_batch"],
        **{name: layout[name] for name in ("tp", "pp", "vpp", "cp", "ep", "dp")}, "fsdp_or_zero": f"ZeRO-{plan['zero']}",
        "sequence_parallel": "yes" if plan["sp"] else "no",
        "recompute": _recompute(plan["recompute"]), "attention": plan["attention"],
        "optimizer": plan["optimizer"]["name"], "notes": _notes(plan),
    }  # fmt: skip


def _framework(plan: Mapping[str, Any]) -> str:
    """The framework that the estimate was made for, of several that share an implementation."""
    from trilemma.plans.training_document import training_plan_from_document
    from trilemma.timing.training_frameworks import framework_of

    try:
        return framework_of(training_plan_from_document(plan)).name
    except InputError:  # a plan of another version
        return str(plan["implementation"])


def _recompute(stated: Mapping[str, Any]) -> str:
    """Mode and parts as tables write them: ``selective (core_attn, mlp)``."""
    parts = ", ".join(map(str, stated.get("parts", ())))
    return f"{stated['mode']} ({parts})" if parts else str(stated["mode"])


def _notes(plan: Mapping[str, Any]) -> str:
    """What no column says and decides a step's time, in the words that `validate` reads of a row."""
    data, tensor = plan.get("overlap_data"), plan.get("overlap_tensor")
    if data is False and tensor is False:
        found = ["comm overlap off"]
    else:
        found = [words for words, on in (("grad-reduce overlap", data), ("tp-comm overlap on", tensor)) if on]
    return "; ".join([*found, *(["compile"] if plan.get("compiled") else [])])


def _value(figures: Mapping[str, float], names: Sequence[tuple[str, float]]) -> float | None:
    return next((figures[name] * factor for name, factor in names if name in figures), None)


def _id(row: Mapping[str, Any]) -> str:
    """The same for the same row, and nothing of whose it is."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:_DIGITS]
