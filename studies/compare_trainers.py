"""Measured trainings put to calculon and to this estimator: errors of tokens per second side by side (docs/comparison.md).

    git clone https://github.com/calculon-ai/calculon && python -m venv v && v/bin/pip install numpy pandas psutil ./calculon
    python studies/compare_trainers.py TABLE.csv --calculon v/bin/python --systems calculon/systems [--models DIR]

Calculon models dense transformers under Megatron on A100 80 GB and H100, so these rows are asked, of every layout without
sharded weights; it has no vocabulary, grouped queries as one head or all, and 16- and 8-bit matrices. Ours answers with the
shipped coefficients and with those refitted without the row's source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner_tables import table

from trilemma.errors import InputError
from trilemma.measured.metrics import errors
from trilemma.measured.tables import Row, UnusableRow, read_table
from trilemma.measured.training.figures import scored_rows
from trilemma.measured.training.judge import judge
from trilemma.measured.training.question import MeasuredTraining, read_training_question
from trilemma.models.architecture import DenseFfn
from trilemma.models.attention.softmax import SoftmaxAttention

ESTIMATES = Path(__file__).with_name("calculon_estimates.py")
_SYSTEMS = {"A100-80GB": "a100_80g.json", "H100": "h100_80g_nvl8.json"}
#: Our unit of recomputation → theirs.
_RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}


@dataclass(kw_only=True, slots=True)
class Training:
    """One measured configuration: tokens per second and GPU as measured and as each tells."""

    row: Row
    question: MeasuredTraining
    measured: float
    ours: float
    held_out: float
    theirs: float | None = None
    error: str = ""


def trainings(path: str, models: str | None) -> list[Training]:
    """Dense runs under Megatron of ``path`` on cards that calculon describes."""
    rows = list(read_table(path).rows)
    chosen = set(scored_rows(rows).values())
    shipped, _ = judge(rows, models_dir=models)
    without, _ = judge(rows, models_dir=models, holdout=("source_ref",))
    found = []
    for row, one, other in zip(rows, shipped, without, strict=True):
        speeds = [[each for each in judged.comparisons if each.metric == "speed"] for judged in (one, other)]
        if row.id not in chosen or not all(speeds) or _system(row) is None:
            continue
        try:
            question = read_training_question(row, models)
        except (UnusableRow, InputError):
            continue
        first = question.model.layers[0]
        plain = isinstance(first.mixer, SoftmaxAttention) and isinstance(first.ffn, DenseFfn)
        if plain and "megatron" in question.framework.implementation and question.plan.zero < 3:
            (ours,), (held_out,) = speeds
            found.append(
                Training(
                    row=row, question=question, measured=ours.measured, ours=ours.predicted, held_out=held_out.predicted
                )
            )
    return found


def _system(row: Row) -> str | None:
    return next((file for card, file in _SYSTEMS.items() if row.text("gpu").startswith(card)), None)


def job_of(one: Training, systems: Path) -> dict[str, Any]:
    """The run in calculon's words."""
    model, plan, workload = one.question.model, one.question.plan, one.question.workload
    row, layout = one.row, one.question.plan.layout
    tensor, stages = int(layout.tp), int(layout.pp)
    data = int(layout.gpus) // (tensor * stages)
    mixer, ffn = model.layers[0].mixer, model.layers[0].ffn
    assert isinstance(mixer, SoftmaxAttention)
    assert isinstance(ffn, DenseFfn)
    heads = mixer.heads
    return {
        "system": str(systems / str(_system(row))),
        "application": {
            "hidden": model.hidden, "feedforward": _columns(ffn), "seq_size": int(workload.seq),
            "attn_heads": heads, "attn_size": model.hidden // heads, "num_blocks": len(model.layers),
        },
        "execution": {
            "num_procs": int(layout.gpus), "tensor_par": tensor, "pipeline_par": stages, "data_par": data,
            "tensor_par_net": 0, "pipeline_par_net": 1, "data_par_net": 1,
            "batch_size": int(workload.global_batch), "microbatch_size": int(plan.micro_batch),
            "datatype": "float8" if "fp8" in row.text("precision").lower() else "float16",
            "fused_activation": True, "attention_type": "multihead",
            "activation_recompute": _RECOMPUTE.get(row.text("recompute").split(" ")[0] or "none", "attn_only"),
            "pipeline_interleaving": int(layout.vpp),
            "optimizer_sharding": bool(row.text("fsdp_or_zero")) and data > 1,
            "tensor_par_comm_type": "rs_ag" if tensor > 1 else "ar", "tensor_par_overlap": "none",
            "seq_par_ag_redo": False, "data_par_overlap": data > 1, "weight_offload": False,
            "activations_offload": False, "optimizer_offload": False, "training": True,
        },
    }  # fmt: skip


def _columns(ffn: DenseFfn) -> int:
    """Columns of the two matrices that calculon counts: a gated layer has three, so half as many again."""
    return ffn.intermediate * 3 // 2 if ffn.gated else ffn.intermediate


def ask(found: Sequence[Training], python: str, systems: Path) -> None:
    jobs = [job_of(one, systems) for one in found]
    done = subprocess.run(
        [python, "-W", "ignore", str(ESTIMATES)],
        input=json.dumps(jobs), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    for one, line in zip(found, done.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        one.error = answer.get("error", "")
        if "step_s" in answer:
            work = one.question.workload
            gpus = int(one.question.plan.layout.gpus)
            one.theirs = work.seq * work.global_batch / gpus / answer["step_s"]


def error_rows(found: Sequence[Training]) -> list[list[str]]:
    """Cells: card and framework, n, answered, then median, mean and bias of calculon, ours, ours left out."""
    groups: dict[str, list[Training]] = defaultdict(list)
    for one in found:
        groups[f"{one.row.text('gpu')}, {one.row.text('framework')}"].append(one)
        groups["all"].append(one)
    rows = []
    for name, members in sorted(groups.items()):
        both = [one for one in members if one.theirs is not None]
        cells = [name, str(len(members)), str(len(both))]
        for tool in ("theirs", "ours", "held_out"):
            told = errors([getattr(one, tool) for one in both], [one.measured for one in both])
            cells += ["–"] * 3 if told is None else [f"{told.median_ape:.1%}", f"{told.mape:.1%}", f"{told.bias:+.0%}"]
        rows.append(cells)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", metavar="TABLE.csv")
    parser.add_argument("--calculon", required=True, metavar="PYTHON")
    parser.add_argument("--systems", required=True, type=Path, metavar="DIR")
    parser.add_argument("--models", metavar="DIR")
    arguments = parser.parse_args()
    found = trainings(arguments.table, arguments.models)
    ask(found, arguments.calculon, arguments.systems)
    head = ["runs", "n", "answered"]
    for who in ("calculon", "trilemma", "held out"):
        head += [f"{who}: median", "mean", "bias"]
    print(table(head, error_rows(found)))
    for one in found:
        if one.error:
            print(f"{one.row.id}: {one.error[:160]}")


if __name__ == "__main__":
    main()
