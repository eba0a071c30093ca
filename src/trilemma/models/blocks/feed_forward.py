"""Tensors of feed-forward blocks, dense and mixtures of experts.

Gate and up are cut by columns, down by rows; experts likewise, or spread whole by expert parallelism; the router is whole on
every rank (vllm/model_executor/layers/fused_moe/layer.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.models.architecture import DenseFfn, ExpertFfn
from trilemma.models.blocks.builder import Builder


@dataclass(frozen=True, kw_only=True, slots=True)
class FfnStyle:
    """Names and extras of a family's feed-forward blocks.

    ``score_bias`` is the correction added to router scores (DeepSeek-V3); ``shared_gate`` the sigmoid gate on the shared
    expert of Qwen2-MoE; ``router_bias`` and ``expert_bias`` ordinary biases (gpt-oss).
    """

    name: str = "mlp"
    moe_name: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    shared: str = "shared_experts"
    bias: bool = False
    down_bias: bool | None = None
    router_bias: bool = False
    score_bias: bool = False
    shared_gate: bool = False
    expert_bias: bool = False


def dense_ffn(add: Builder, hidden: int, ffn: DenseFfn, style: FfnStyle, *, name: str = "", role: str = "ffn") -> None:
    """Gate (when gated), up and down matrices of one block under ``name``."""
    name = name or style.name
    dot = "." if name else ""
    size = ffn.intermediate
    down_bias = style.bias if style.down_bias is None else style.down_bias
    if ffn.gated:
        add.linear(
            f"{name}{dot}{style.gate}", f"{role}.gate", size, hidden, shard="column", units=size, bias=style.bias
        )
    add.linear(f"{name}{dot}{style.up}", f"{role}.up", size, hidden, shard="column", units=size, bias=style.bias)
    add.linear(f"{name}{dot}{style.down}", f"{role}.down", hidden, size, shard="row", units=size, bias=down_bias)


def expert_ffn(add: Builder, hidden: int, ffn: ExpertFfn, style: FfnStyle) -> None:
    """Router, stacked experts and the shared block of one layer."""
    name, width, size = style.moe_name, ffn.hidden or hidden, ffn.intermediate
    add.plain(f"{name}.{style.router}.weight", "router", ffn.experts, hidden)
    if style.router_bias:
        add.plain(f"{name}.{style.router}.bias", "router", ffn.experts)
    if style.score_bias:
        add.plain(f"{name}.{style.router}.e_score_correction_bias", "router", ffn.experts)
    if ffn.hidden is not None:
        add.linear(f"{name}.fc1_latent_proj", "latent.down", width, hidden)
        add.linear(f"{name}.fc2_latent_proj", "latent.up", hidden, width)
    stack, bias = ffn.experts, style.expert_bias
    gate, up, down = (f"{name}.experts.0.{part}" for part in style.expert_names)
    if ffn.gated:
        add.linear(gate, "experts.gate", size, width, shard="column", units=size, experts=stack, bias=bias)
    add.linear(up, "experts.up", size, width, shard="column", units=size, experts=stack, bias=bias)
    add.linear(down, "experts.down", width, size, shard="row", units=size, experts=stack, bias=bias)
    if ffn.shared_intermediate:
        shared = DenseFfn(intermediate=ffn.shared_intermediate, gated=ffn.gated)
        dense_ffn(add, hidden, shared, FfnStyle(), name=f"{name}.{style.shared}", role="shared")
        if style.shared_gate:
            add.plain(f"{name}.{style.shared}_gate.weight", "router", 1, hidden)
