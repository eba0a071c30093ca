"""How an implementation writes a decoder layer, as far as it decides which tensors are kept; read from one data file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from trilemma.data.files import read_data


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTraits:
    """``norm``: one kernel, or RMSNorm written out with an FP32 copy. ``gated``: activation and product fused in one kernel
    or separate. ``router_copies`` FP32 copies of all router scores; ``routed_scalars`` 32-bit numbers per token sent to an
    expert (indices, weights, orders); ``returned_rows`` copies of what experts return that are kept to weigh them.
    ``gathered_inputs``: inputs of column-parallel products are kept as gathered along the sequence, not as dealt out.
    ``hidden_dropout``: masks of one byte are kept after both halves of a layer; ``attention_dropout``: where attention is not
    fused, softmax's output before and after and the mask between (Korthikanti et al. 2022, section 4.1). ``fused_softmax``:
    unfused attention keeps softmax's output in 16 bits alone (Transformer Engine's FusedScaleMaskSoftmax).

    Habits of single families: ``wide_norm`` multiplies the weight of a written norm in FP32, of whose
    input ``norm_copies`` FP32 copies are kept; ``fused_qkv`` keeps the product
    that q, k and v are views of beside rotated copies, and a copy of attention's output; ``activation_copies`` intermediate
    results of an activation written out; ``shared_norm_input``: both norms read one tensor; ``soft_cap`` keeps capped scores
    and logits; ``wide_router`` reads an FP32 copy of its input; ``every_expert``: each runs over every token.
    ``residual_bits``: of the sum that layers add to, where it is wider than activations; ``own_inputs``: each product keeps a
    copy of its own of what it multiplies (autocast turns an FP32 tensor anew for each).
    """

    norm: Literal["fused", "written"] = "fused"
    gated: Literal["fused", "separate"] = "fused"
    router_copies: float = 1.0
    routed_scalars: float = 2.0
    returned_rows: float = 1.0
    gathered_inputs: bool = False
    hidden_dropout: bool = False
    attention_dropout: bool = False
    fused_softmax: bool = False
    wide_norm: bool = False
    norm_copies: float = 1.0
    fused_qkv: bool = False
    activation_copies: float = 1.0
    shared_norm_input: bool = False
    soft_cap: bool = False
    wide_router: bool = False
    every_expert: bool = False
    residual_bits: float | None = None
    own_inputs: bool = False


@cache
def coefficients() -> dict[str, Any]:
    """The whole file of training memory coefficients."""
    return read_data("coefficients/training_memory.toml")


@cache
def modelling_traits(modelling: str, family: str = "") -> BlockTraits:
    """Traits of a model code (transformers, torchtitan, megatron, torchtune, litgpt, llm-foundry), with the habits that it
    has for one family of models."""
    row = {key: value for key, value in coefficients()["traits"][modelling].items() if key not in ("source", "as_of")}
    habits: dict[str, Any] = {}
    for one in row.pop("habits", []):
        if family in one["families"]:
            habits |= {key: value for key, value in one.items() if key != "families"}
    return BlockTraits(**(row | habits))


def implementation_facts(implementation: str, *, version: str | None = None) -> Mapping[str, Any]:
    """Facts of who runs the training: whose model code it uses, how losses and buffers behave, by version where known."""
    return _facts(implementation, version)


@cache
def _facts(implementation: str, version: str | None) -> Mapping[str, Any]:
    row: dict[str, Any] = dict(coefficients()["implementation"][implementation])
    parent = row.pop("like", None)
    found = {**(_facts(parent, version) if parent else {}), **row}
    for era in found.pop("eras", []):
        if dated(version) is not None and dated(version) < era["before"]:
            found.update({key: value for key, value in era.items() if key != "before"})
            break
    return found


def dated(version: str | None) -> str | None:
    """A year and month (2025-03) that ``version`` names by date, by a release of torch or a known commit; None where none."""
    if version is None:
        return None
    for commit, when in coefficients()["commits"].items():
        if commit in version:
            return str(when)
    release = re.search(r"torch[ =]*([0-9]+\.[0-9]+)", version)
    if release is not None and release.group(1) in coefficients()["torch_releases"]:
        return str(coefficients()["torch_releases"][release.group(1)])
    date = re.search(r"(20[0-9]{2})-?([01][0-9])?", version)
    return None if date is None else f"{date.group(1)}-{date.group(2) or '12'}"
