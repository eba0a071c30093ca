"""Models, clusters and plans that several tests of training memory share."""

from __future__ import annotations

from functools import cache
from typing import Any

from trilemma.hardware.catalogue import find_measured
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import TrainingMemory, training_memory
from trilemma.models.architecture import Model
from trilemma.models.read import model_from_config
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan, recipe
from trilemma.workloads import TrainingWorkload

STATE = ("weights", "gradients", "master_weights", "optimizer")


@cache
def model(name: str) -> Model:
    return load_model(name)


@cache
def cluster(gpus: int, gpu: str = "H100") -> Cluster:
    return Cluster.of(find_measured(gpu)[0], gpus)


def gpt(name: str, *, layers: int, hidden: int, heads: int, vocab: int = 51_200, positions: int = 2048) -> Model:
    """A GPT of the papers: multi-head attention, GELU, learned positions, tied embeddings."""
    config = {
        "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": vocab,
        "n_positions": positions, "tie_word_embeddings": True,
    }  # fmt: skip
    return model_from_config(config, name=name, source="paper")


def memory(
    what: Model | str,
    *,
    seq: int = 4096,
    global_batch: int | None = None,
    work: dict[str, Any] | None = None,
    gpu: str = "H100",
    **plan: Any,
) -> TrainingMemory:
    """Training memory of a plan given as keywords; degrees of parallelism go to the layout."""
    degrees = {key: plan.pop(key) for key in ("tp", "pp", "dp", "ep", "cp", "vpp") if key in plan}
    layout = Layout(**degrees)
    plan.setdefault("recipe", recipe("bf16"))
    made = TrainingPlan(layout=layout, **plan)
    gpus = 8 if layout.is_table else int(layout.gpus)
    load = TrainingWorkload(seq=seq, global_batch=global_batch or 64, **(work or {}))
    return training_memory(model(what) if isinstance(what, str) else what, cluster(gpus, gpu), made, load)


def state_bytes(found: TrainingMemory) -> Any:
    lines = [found.ledger.get(name) for name in STATE]
    return sum(line.bytes for line in lines if line is not None)


def line_bytes(found: TrainingMemory, *names: str) -> Any:
    return sum(line.bytes for line in found.ledger if line.name in names)
