"""One row of a training table read as a question: which model, on which cluster, laid out and run how.

Columns win over names: architecture columns change the catalogue's model where they differ (some runs cut or altered one).
What had to be filled in is listed; what cannot be read makes the row unusable with its reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.measured.tables import Row, UnusableRow
from trilemma.measured.training.model import model_of_row
from trilemma.measured.training.published import published_recipe
from trilemma.measured.training.usual import (
    applies_in_backward,
    as_its_machine,
    as_peft_runs,
    as_submitted,
    fine_tuning,
    reached,
    stated_offload,
    usual_global_batch,
    usual_loss,
    usual_micro_batch,
    usual_optimizer,
)
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import every, names
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import recipe, recipe_names
from trilemma.plans.training import Matmul, Recompute, Schedule, TrainingPlan, TrainingRecipe
from trilemma.timing.training_frameworks import FrameworkTiming, era_of, find_framework
from trilemma.versions import DEFAULT_FRAMEWORK
from trilemma.workloads import TrainingWorkload

#: Load of the fullest expert rank over the mean where a source says that routing was the model's own.
NATURAL_IMBALANCE = 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTraining:
    """What a row asks. ``era`` of the software, "" where unknown."""

    model: Model
    cluster: Cluster
    plan: TrainingPlan
    workload: TrainingWorkload
    framework: FrameworkTiming
    era: str
    assumed: tuple[str, ...]


def read_training_question(row: Row, models_dir: str | Path | None = None) -> MeasuredTraining:
    """The question of one row. Raises `UnusableRow` with the reason where it lacks what a prediction needs."""
    assumed: list[str] = []
    row = as_submitted(row, assumed)
    published = published_recipe(row)
    row = published.filled(row, assumed)
    notes = row.text("notes").lower()
    model = model_of_row(row, None if models_dir is None else str(models_dir), assumed)
    framework = _framework(row, assumed)
    workload, micro_batch, layout = _shape(row, model, framework.implementation, assumed)
    cluster = _cluster(row, layout, assumed)
    base, matmul = _recipe(row, framework, assumed)
    mtp = bool(model.mtp_layers) and "w/o mtp" not in notes and not row.text("model").lower().count("cut to")
    plan = TrainingPlan(
        layout=layout,
        micro_batch=micro_batch,
        implementation=framework.implementation,
        version=row.text("version") or None,
        recipe=replace(base, matmul=matmul),
        optimizer=usual_optimizer(row, base, framework.name, model),
        loss=usual_loss(row, framework.implementation),
        sp=_sequence_parallel(row, framework, layout),
        recompute=_recompute(row, assumed),
        schedule=_schedule(row, layout),
        attention="eager" if _unfused(row) else "flash",
        compiled="compile" in notes or ("cumulative" in notes and reached(row, "compile")),
        offload=stated_offload(row),
        optimizer_in_backward=applies_in_backward(row),
        imbalance=NATURAL_IMBALANCE if "natural routing" in notes else 1.0,
        overlap_tensor=_overlap(notes, "tp-comm overlap on", "asynctp", "async tp"),
        overlap_data=_overlap(notes, "grad-reduce"),
        pipeline_layers=_filled_stages(model, layout, len(model.mtp_layers) if mtp else 0),
        mtp=mtp,
        **published.switches,
        **_sharding(row, framework),
    )
    return MeasuredTraining(
        model=model,
        cluster=cluster,
        plan=plan,
        workload=workload,
        framework=framework,
        era=era_of(framework.name, row.text("version")) or era_of(framework.name, row.text("framework")),
        assumed=tuple(assumed),
    )


def _filled_stages(model: Model, layout: Layout, mtp: int) -> tuple[int, ...] | None:
    """Layers of stages where they do not divide: filled, the last with what is left (61 layers in Megatron-Bridge: 15 stages of
    4, then 1 with the MTP layer). None where an even placement is meant."""
    layers, pp, vpp = len(model.layers), int(layout.pp), int(layout.vpp)
    if pp == 1 or not (layers + mtp) % (pp * vpp) or not (layers + mtp + 2) % (pp * vpp):
        return None
    filled = -(-(layers + mtp + 1) // pp)
    left = layers - (pp - 1) * filled
    return (*(filled,) * (pp - 1), left) if left >= 0 else None


def _framework(row: Row, assumed: list[str]) -> FrameworkTiming:
    name, version = row.text("framework"), row.text("version")
    if not name:
        raise UnusableRow("names no framework")
    found = find_framework(f"{name} {version}")
    if found is None:
        assumed.append(f"framework {shorten(name)!r} is not known; as fast as frameworks are on average")
        return FrameworkTiming(
            name="other", implementation=names()["fsdp"] if "fsdp" in name.lower() else DEFAULT_FRAMEWORK
        )
    return found


def _shape(row: Row, model: Model, implementation: str, assumed: list[str]) -> tuple[TrainingWorkload, int, Layout]:
    """Sequence, batches and degrees of parallelism. The global batch and dp follow from the rest where one is missing."""
    seq = row.whole("seq_len", low=1, high=2**24)
    gpus = row.whole("gpus", low=1, high=2**20)
    if seq is None:
        raise UnusableRow("states no sequence length")
    if gpus is None:
        raise UnusableRow("states no number of GPUs")
    tp, pp, cp, vpp, ep = (row.whole(key, low=1, high=4096) or 1 for key in ("tp", "pp", "cp", "vpp", "ep"))
    if gpus % (tp * pp * cp):
        raise UnusableRow(f"tp {tp} x pp {pp} x cp {cp} does not divide {gpus} GPUs")
    dp = gpus // (tp * pp * cp)
    stated = row.whole("dp", low=1, high=2**20)
    if stated is not None and stated not in (dp, dp * cp, dp * tp):
        raise UnusableRow(f"tp {tp} x pp {pp} x cp {cp} x dp {stated} is not {gpus} GPUs")
    if pp > len(model.layers) + 2:
        raise UnusableRow(f"{pp} pipeline stages for {len(model.layers)} layers")
    if vpp > 1 and pp == 1:
        vpp = 1
    if ep > tp * cp * dp or (tp * cp * dp) % ep:
        raise UnusableRow(f"ep {ep} does not divide the {tp * cp * dp} ranks of a stage")
    micro_batch, global_batch = (row.whole(key, low=1, high=2**24) for key in ("micro_batch", "global_batch"))
    if micro_batch is None:
        micro_batch = usual_micro_batch(row, implementation, pp) or 1
        assumed.append(f"micro-batch {micro_batch}: not stated")
    if global_batch is None:
        global_batch = usual_global_batch(row, micro_batch, dp, pp, assumed)
    method, rank, targets = fine_tuning(row, model, assumed)
    workload = TrainingWorkload(seq=seq, global_batch=max(global_batch, 1), method=method, rank=rank, targets=targets)
    return as_peft_runs(row, workload, model), micro_batch, Layout(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, vpp=vpp)


def _cluster(row: Row, layout: Layout, assumed: list[str]) -> Cluster:
    name = row.text("gpu")
    if not name:
        raise UnusableRow("names no GPU")
    found = _found_card(name[:300])
    if isinstance(found, str):
        raise UnusableRow(found)
    accelerator, warnings = found
    assumed += [warning.message for warning in warnings]
    per_node = row.whole("gpus_per_node", low=1, high=1024) or min(accelerator.gpus_per_node, int(layout.gpus))
    accelerator = as_its_machine(row, accelerator)
    each = network_bytes_per_s(row.text("interconnect"), per_node)
    whole = None if each is None else each * per_node
    return Cluster.of(accelerator, int(layout.gpus), gpus_per_node=per_node, network_bytes_per_s=whole)


@lru_cache(maxsize=256)
def _found_card(name: str) -> tuple[Accelerator, tuple[PlanWarning, ...]] | str:
    from trilemma.hardware.catalogue import find_measured

    try:
        return find_measured(name)
    except InputError as error:
        return error.flags


_PORTS = re.compile(
    r"(?:^|[^\w.])(\d{1,2})\s*x\s*(?:\w+-\d+\s*)?(?:\w+\s+){0,2}?(\d{2,4})\s*(gb/s|gbps)", re.IGNORECASE
)
_RATE = re.compile(r"(\d{2,5})\s*(gb/s|gbps)", re.IGNORECASE)


def network_bytes_per_s(text: str, gpus_per_node: int) -> float | None:
    """Network bytes/s of one GPU, one way, that a description such as ``8x200Gb/s HDR IB per node`` states; else None.

    ``Gb/s`` and ``Gbps`` are bits, ``GB/s`` bytes. A rate "per GPU" counts as it is, others are of the node.
    """
    for part in text[:1000].split(";"):
        lowered = part.lower()
        if "nvlink" in lowered and "node-node" not in lowered:
            continue
        ports = _PORTS.search(part)
        rate = ports or _RATE.search(part)
        if rate is None or ("storage" in lowered and ports is None):
            continue
        value = float(rate.group(2) if ports else rate.group(1)) * 1e9
        value /= 1.0 if "GB/s" in rate.group(0) else 8.0
        if ports:
            return value * int(ports.group(1)) / gpus_per_node
        return value if "per gpu" in lowered or (value < 101e9 and "node" not in lowered) else value / gpus_per_node
    return None


def _recipe(row: Row, framework: FrameworkTiming, assumed: list[str]) -> tuple[TrainingRecipe, Matmul]:
    text = row.text("precision").lower()
    if not text:
        assumed.append("precision BF16: not stated")
    if "-" in text and text in recipe_names():  # a recipe of ours in full, as rows of the ledger name it
        return recipe(text), recipe(text).matmul
    if "nvfp4" in text and "base" not in text:
        matmul: Matmul = "nvfp4"
    elif "mxfp8" in text or "fp8-mx" in text:
        matmul = "mxfp8"
    elif "fp8" in text:
        matmul = "fp8_row" if "row" in text else "fp8_block" if "block" in text or "1x128" in text else "fp8_tensor"
    else:
        matmul = "same"
    traits = every()[framework.implementation]
    if traits.usual_recipe in ("fsdp", "pure-bf16"):
        single = traits.pure_where_bf16 and text.startswith("bf16") and "adapter" not in text
        if single or "pure" in text or "full bf16" in text or traits.usual_recipe == "pure-bf16":
            return replace(recipe("pure-bf16"), gathered="bf16"), matmul
        # PEFT's own table holds adapters in FP32 and trains without autocast; others that say so are of the Trainer.
        by_hand = "adapters fp32" in text and "peft" in row.text("framework").lower()
        return recipe("adapters-fp32" if by_hand else "fsdp"), matmul
    return recipe("bf16-bf16-grads" if framework.name == "megatron-bridge" else traits.usual_recipe), matmul


def _sharding(row: Row, framework: FrameworkTiming) -> dict[str, Any]:
    text = row.text("fsdp_or_zero").lower()
    if "shard_grad" in text or "kept after" in text or "zero-2" in text:
        return {"zero": 2}
    if "fsdp" in text or "zero-3" in text:
        degree = re.search(r"fsdp\((\d{1,6})\)", text)
        return {"zero": 3, "shard_group": int(degree.group(1)) if degree else None}
    if "zero-1" in text or (
        not text and every()[framework.implementation].shards_optimizer and "2021" not in framework.name
    ):
        return {"zero": 1}
    return {"zero": 0}


def _sequence_parallel(row: Row, framework: FrameworkTiming, layout: Layout) -> bool:
    text = row.text("sequence_parallel").lower()
    if text.startswith(("yes", "no")):
        return text.startswith("yes")
    return bool(layout.tp != 1) and "2021" not in framework.name


_PART_NAMES = {"core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts"}


def _recompute(row: Row, assumed: list[str]) -> Recompute:
    text = row.text("recompute").lower()
    if not text:
        assumed.append("no recompute: not stated")
    if text.startswith("full"):
        some = re.search(r"\((\d{1,4}) layers", text)
        return Recompute(mode="full", layers=int(some.group(1)) if some else None)
    if not text.startswith("selective"):
        return Recompute()
    if "per-op" in text:
        return Recompute(mode="op")
    parts = tuple(word for word in re.findall(r"[a-z_]+", text.partition("(")[2]) if word in _PART_NAMES)
    return Recompute(mode="selective", parts=parts)


def _schedule(row: Row, layout: Layout) -> Schedule:
    text = f"{row.text('notes')} {row.text('framework')}".lower()
    if "dualpipe" in text:
        return "dualpipe"
    for word, name in (("zbv", "zbv"), ("v-half", "v-half"), ("v-min", "v-min"), ("zbb", "zb-h1")):
        if f"schedule {word}" in text:
            return name  # type: ignore[return-value]
    return "interleaved" if layout.vpp != 1 or "interleaved 1f1b" in text else "1f1b"


def _unfused(row: Row) -> bool:
    text = row.text("attention").lower()
    return "unfused" in text or "eager" in text or (not text and row.text("version")[:4] in ("2021", "2022"))


def _overlap(notes: str, *words: str) -> bool | None:
    if "comm overlap off" in notes:
        return False
    return True if any(word in notes for word in words) else None
