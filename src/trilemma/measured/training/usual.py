"""What tables leave out of training rows and frameworks decide: methods of fine-tuning, optimizer state, how losses run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.tables import Row
from trilemma.memory.adapters import AdapterMethod, find_adapter_method
from trilemma.memory.traits import coefficients, implementation_facts
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import every
from trilemma.plans.recipes import optimizer
from trilemma.plans.training import Loss, Offload, Optimizer, TrainingRecipe
from trilemma.timing.training_frameworks import find_framework
from trilemma.timing.training_ladder import reach
from trilemma.workloads import Method, TrainingWorkload

#: PEFT's default targets of LoRA on decoders of Llama's shape.
_PEFT_TARGETS = ("attention.q", "attention.v")
_TRAINED = re.compile(r"trainable params ([0-9][0-9,]{0,15})")
_WORDS: tuple[tuple[str, Method], ...] = (("qlora", "qlora"), ("dora", "dora"), ("lora", "lora"))


@cache
def _submissions() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_data("validation/submissions.toml")["submission"])


def as_submitted(row: Row, assumed: list[str]) -> Row:
    """``row`` with the trainer and number format of the code that submissions to its benchmark share, where it names none itself
    (data/validation/submissions.toml); what was filled in is appended to ``assumed``."""
    version, card, cells = row.text("version").lower(), row.text("gpu").lower(), {}
    for one in _submissions():
        if not version.startswith(one["version"]) or one["card"] not in card:
            continue
        named = row.text("framework")
        if "framework" in one and named and find_framework(named) is None:
            cells["framework"] = " ".join((one["framework"], *re.findall(r"Release [\d.]{4,6}", named)[-1:]))
        if not row.text("precision"):
            cells["precision"] = one["precision"]
    assumed += [f"{column} {value}: as these submissions run, not stated" for column, value in cells.items()]
    return replace(row, cells={**row.cells, **cells}) if cells else row


def as_its_machine(row: Row, accelerator: Accelerator) -> Accelerator:
    """The card of a row whose source measured matrix products on its machine (column ``matmul_fraction_bf16``, of the stated
    peak): its peaks are as much lower or higher as that share is than the share measured on cards of the kind. A row that states
    itself as a share of the peak keeps it.
    """
    own = row.number("matmul_fraction_bf16", low=0.01, high=1.5)
    if own is None or row.text("measured_metric") == "mfu":
        return accelerator
    factor = own / reach(accelerator, "bf16")
    peaks = {name: replace(peak, value=peak.value * factor) for name, peak in accelerator.peak_flops.items()}
    return replace(accelerator, peak_flops=peaks)


def _trained(row: Row) -> int | None:
    """The parameters that the notes say are trained; None where they state no number."""
    stated = _TRAINED.search(row.text("notes"))
    return None if stated is None else int(stated.group(1).replace(",", ""))


def fine_tuning(row: Row, model: Model, assumed: list[str]) -> tuple[Method, int, tuple[str, ...]]:
    """Method, rank and targets of a row; what was assumed is appended.

    Tables of PEFT name dozens of methods and state how many parameters train: those that train less than half of the model
    are taken as LoRA on the default targets with the rank that makes as many.
    """
    name = row.text("model").lower()
    count = _trained(row)
    if "peft" in row.text("framework").lower() and count is not None:
        total = sum(tensor.elements for tensor in model.tensors)
        if 2 * count >= total:
            return "full", 0, ()
        sides = sum(sum(tensor.shape[-2:]) for tensor in model.of_part("layers") if tensor.role in _PEFT_TARGETS)
        assumed.append("adapter: LoRA on query and value with as many parameters as the row states")
        return ("dora" if "[dora" in name else "lora"), max(round(count / max(sides, 1)), 1), _PEFT_TARGETS
    method: Method = next((method for word, method in _WORDS if word in name), "full")
    if method == "full":
        return "full", 0, ()
    rank = re.search(r"\br(\d{1,4})\b", name)
    if rank is None:
        assumed.append("adapter rank 16: not stated")
    return method, int(rank.group(1)) if rank else 16, ()


def peft_method(row: Row) -> AdapterMethod | None:
    """The method that a table of PEFT names beside its model, with the variant that the run's own name adds."""
    named = re.search(r"\[([\w ]+)\]", row.text("model"))
    if named is None or "peft" not in row.text("framework").lower():
        return None
    return find_adapter_method(f"{named.group(1)} {row.text('config_id').rpartition('--')[2]}")


def prompt_tokens(row: Row, model: Model) -> int:
    """Tokens that a method puts before the text, from what it trains: an embedding each, keys and values of every layer, or an
    embedding each beside a network of three square layers (huggingface/peft src/peft/tuners/p_tuning/model.py)."""
    count, hidden = _trained(row), model.hidden
    if count is None:
        return 0
    network = 3 * (hidden * hidden + hidden)
    if "prefix" in row.text("model").lower():
        return 0  # keys and values alone, which no layer computes
    return (count - network if count > network else count) // hidden


def as_peft_runs(row: Row, workload: TrainingWorkload, model: Model) -> TrainingWorkload:
    """``workload`` with what a method of PEFT that the row names keeps, where it is known: on the feed-forward matrices where the
    run's name says so, and on longer sequences where it puts tokens before the text."""
    method = peft_method(row)
    if method is None or not workload.trains_adapters:
        return workload
    targets = ("ffn",) if "-mlp-" in row.text("config_id") else workload.targets
    seq = workload.seq + (prompt_tokens(row, model) if method.prompt else 0)
    return replace(workload, adapter=" ".join(method.words), targets=targets, seq=seq)


def usual_optimizer(row: Row, recipe: TrainingRecipe, framework: str, model: Model) -> Optimizer:
    """The optimizer that a row names; where it only says Adam, moments are as the framework keeps them.

    PyTorch makes moments in the format of the weights it updates; Megatron-Bridge's recipes of some families keep BF16
    moments.
    """
    text = row.text("optimizer").lower()
    bits = re.search(r"\b([48])[- ]?bit", text)
    if bits is not None:
        return optimizer(f"adamw-{bits.group(1)}bit")
    if framework == "megatron-bridge" and model.family in coefficients()["bridge_defaults"]["bf16_moment_families"]:
        return optimizer("adamw-bf16-moments")
    return optimizer("adamw-like-weights" if recipe.master is None else "adamw")


def usual_loss(row: Row, implementation: str) -> Loss:
    """How the framework's recipes compute the loss; a step of a ladder of techniques has those it names, and those above it."""
    found: Loss = implementation_facts(implementation).get("usual_loss", "full")
    return found if reached(row, "chunk") else "full"


#: Techniques in the order in which torchtune's ladder adds them: words of a row's label.
_LADDER = ("packed", "compile", "chunk", "checkpoint", "backward", "offload", "8-bit")


def reached(row: Row, technique: str) -> bool:
    """Whether a row of a cumulative ladder has come to ``technique``; a row of any other kind of table always has."""
    if "cumulative" not in row.text("notes").lower():
        return True
    if "lora" in row.text("model").lower():
        return True
    recompute = row.text("recompute").lower().replace("full", "checkpoint")
    words = f"{row.text('config_id')} {row.text('optimizer')} {recompute}".lower().replace("8bit", "8-bit")
    steps = [index for index, word in enumerate(_LADDER) if word in words]
    return bool(steps) and max(steps) >= _LADDER.index(technique)


def applies_in_backward(row: Row) -> bool:
    """Whether each gradient is applied and freed as it comes, as a row says in its label or notes."""
    text = f"{row.text('config_id')} {row.text('notes')}".lower().replace("-", " ")
    if "cumulative" in text:
        return reached(row, "backward") and "lora" not in row.text("model").lower()
    return "in backward" in text or "fused optimizer" in text


def local_batch(row: Row) -> int | None:
    """The sequences of one replica in a step, where the notes state them."""
    found = re.search(r"local batch ([1-9][0-9]{0,4})\b", row.text("notes").lower())
    return None if found is None else int(found.group(1))


def usual_micro_batch(row: Row, implementation: str, pp: int) -> int | None:
    """The micro-batch of a pipeline whose local batch the notes state, where the framework cuts it into as many as there are
    stages."""
    local = local_batch(row)
    return max(local // pp, 1) if local is not None and every()[implementation].local_batch_over_stages else None


def usual_global_batch(row: Row, micro_batch: int, dp: int, pp: int, assumed: list[str]) -> int:
    """The sequences of a step where no cell states them: the local batches of the notes, else one micro-batch a rank, four a
    stage of a pipeline; what was assumed is appended."""
    local = local_batch(row)
    if local is not None:
        return local * dp
    found = micro_batch * dp * (4 * pp if pp > 1 else 1)
    assumed.append("no gradient accumulation: not stated" if pp == 1 else f"global batch {found}: not stated")
    return found


def stated_offload(row: Row) -> Offload:
    """What a row keeps on the host: activations with its recompute, all state where the notes speak of CPU offload."""
    state = 1.0 if "cpu offload" in row.text("notes").lower() else 0.0
    return Offload(
        activations=1.0 if "offload" in row.text("recompute").lower() else 0.0, optimizer=state, weights=state
    )
