"""What a training log says of its own arithmetic: a peak with sparsity, parameters in FP32, memory that is only reserved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Evidence, Finding, Part
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import GIB

#: A stated peak within this of the sparse figure means that one.
_SAME = 0.03
#: Reserved beyond allocated above this share of what is allocated is worth a remedy (meta-llama/llama-cookbook issue 120: 63 of
#: 42 GB). Healthy runs of BigScience's GPT-2 on V100 keep 15 to 25 % (their published logs, one 40 %), and need none.
_OVERHANG, _NOTED = 0.45, 0.15


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        card = _card(part.facts, case.expectations.get(file))
        yield from _sparse(file, part, card)
        yield from _single(file, part, card)
        yield from _reserved(file, part)


def _card(facts: Any, expectation: Expectation | None) -> Accelerator | None:
    from trilemma.hardware.catalogue import find_measured

    if expectation is not None:
        return expectation.answer.question.cluster.accelerator
    try:
        return find_measured(facts["device"])[0] if "device" in facts else None
    except InputError:
        return None


def _proof(file: str, part: Part, name: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(file=file, line=one.line, value=one.values["text"]) for one in part.events if one.name == name
    )


def _sparse(file: str, part: Part, card: Accelerator | None) -> Iterator[Finding]:
    """MFU against a peak with 2:4 sparsity is half of what it should be (NVIDIA/Megatron-LM issue 1276)."""
    stated, dense = part.facts.get("stated_peak_flops"), None if card is None else card.peak("bf16")
    if not stated or dense is None or card is None or abs(stated / (2 * dense.value) - 1) > _SAME:
        return
    mfu = part.facts.get("median_mfu_percent")
    yield Finding(
        id="speed.sparse-peak", role="root", severity="warning",
        claim=f"MFU is counted against {stated / 1e12:,.0f} TFLOP/s, which {card.name} has with 2:4 sparsity alone; dense "
        "BF16 is "
        f"{dense.value / 1e12:,.0f}",
        evidence=_proof(file, part, "stated_peak_flops"), expected=f"{dense.value / 1e12:,.0f} TFLOP/s",
        observed=f"{stated / 1e12:,.0f} TFLOP/s", confidence="established", fix="divide by the dense peak",
        predicted_effect=None if mfu is None else f"MFU {mfu:.3g} % is {mfu * stated / dense.value:.3g} %",
    )  # fmt: skip


def _single(file: str, part: Part, card: Accelerator | None) -> Iterator[Finding]:
    """Parameters in FP32 without a flag for 16 bits: matrix products leave the tensor cores (NVIDIA/Megatron-LM issue 1000)."""
    told = part.facts.get("median_tflops_per_gpu")
    dense = None if card is None else card.peak("bf16")
    if part.facts.get("parameters_in") != "torch.float32":
        return
    slow = told is not None and dense is not None and told < 0.2 * dense.value / 1e12
    if told is not None and dense is not None and not slow:
        return
    of = f", {told:.3g} of {dense.value / 1e12:,.0f} TFLOP/s" if told and dense is not None else ""
    yield Finding(
        id="speed.parameters-in-fp32", role="root", severity="warning",
        claim=f"the log says torch.float32 for parameters: matrix products run in FP32, outside the fast units{of}",
        evidence=_proof(file, part, "parameters_in"), expected="torch.bfloat16 for parameters",
        observed="torch.float32 for parameters", confidence="supported" if slow else "hypothesis",
        fix="--bf16 (or --fp16) in the training command",
        predicted_effect=None if not told or dense is None else f"up to {0.4 * dense.value / 1e12 / told:.2g} times as "
        "fast, at 40 % of "
        "the dense BF16 peak",
    )  # fmt: skip


def _reserved(file: str, part: Part) -> Iterator[Finding]:
    reserved, allocated = part.facts.get("peak_reserved_bytes"), part.facts.get("peak_allocated_bytes")
    if not reserved or not allocated or reserved - allocated < _NOTED * allocated:
        return
    over = reserved - allocated
    grave = over >= _OVERHANG * allocated or bool(part.facts.get("allocator_flushes"))
    yield Finding(
        id="memory.reserved-overhang", role="symptom" if grave else "context", severity="warning" if grave else "context",
        claim=f"{reserved / GIB:.1f} GiB are reserved and {allocated / GIB:.1f} allocated at most: {over / GIB:.1f} GiB "
        f"({over / reserved:.0%}) are held in pieces that do not fit",
        evidence=(Evidence(file=file, value=f"reserved {reserved / GIB:.1f} GiB, allocated {allocated / GIB:.1f} GiB"),),
        expected=f"less than {_NOTED:.0%} beyond what is allocated", observed=f"{over / allocated:.0%}",
        confidence="supported",
        fix="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; with tensor-parallel FSDP2 "
        "TORCH_NCCL_AVOID_RECORD_STREAMS=1; a memory "
        "snapshot tells streams and waiting blocks apart",
        predicted_effect=f"up to {over / GIB:.1f} GiB less reserved",
    )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
