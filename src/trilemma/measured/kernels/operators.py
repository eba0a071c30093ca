"""How the rows of each operator are read: kernel, number format and shapes, by the names of the formulas' arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.measured.kernels.columns import Columns, table_rules
from trilemma.quantities import Array

Read = Callable[[Columns, str], tuple[Any, Any, dict[str, Array]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """How rows of one operator are read: the kernel and format of each row, and its shapes by argument name."""

    read: Read
    dtype_column: str = ""
    family: str = ""


def _formats(columns: Columns, column: str) -> Any:
    names = table_rules()["formats"]
    texts = columns.text(column)
    return np.array([names.get(text, text) for text in texts.tolist()], dtype=object).astype(str)


def _all(columns: Columns, kernel: str) -> Any:
    return np.full(columns.rows, kernel)


def _gemm(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "gemm"), _formats(columns, "gemm_dtype"), {name: columns.number(name) for name in "mnk"}


def _decode(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "decode_attention"), _cache_formats(columns, ""), {
        "batch": columns.number("batch_size"),
        "context": columns.number("isl") + columns.number("step"),
        **_heads(columns),
        "window": columns.number("window_size", 0.0),
    }  # fmt: skip


def _prefill(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "prefill_attention"), _cache_formats(columns, "attn_dtype"), {
        "batch": columns.number("batch_size"),
        "tokens": columns.number("isl"),
        **_heads(columns),
        "cached": columns.number("step"),
        "window": columns.number("window_size", 0.0),
    }  # fmt: skip


def _heads(columns: Columns) -> dict[str, Array]:
    heads, kv_heads = columns.number("num_heads"), columns.number("num_key_value_heads")
    return {
        "heads": heads,
        "kv_heads": np.where(kv_heads == 0, heads, kv_heads),  # tables write 0 for as many as query heads
        "head_dim": columns.number("head_dim"),
    }


def _cache_formats(columns: Columns, computed: str) -> Any:
    """``bf16`` or ``bf16_kv8`` by how the cache is stored; ``fp8`` where scores are multiplied in FP8 too."""
    stored = np.where(_formats(columns, "kv_cache_dtype") == "fp8", "bf16_kv8", "bf16")
    return np.where(_formats(columns, computed) == "fp8", "fp8", stored) if computed else stored


def _mla_decode(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "mla_decode"), _cache_formats(columns, ""), {
        "batch": columns.number("batch_size"),
        "context": columns.number("isl") + columns.number("step"),
        "heads": columns.number("num_heads"),
    }  # fmt: skip


def _mla_prefill(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "mla_prefill"), _cache_formats(columns, "mla_dtype"), {
        "batch": columns.number("batch_size"),
        "tokens": columns.number("isl"),
        "heads": columns.number("num_heads"),
        "cached": columns.number("step"),
    }  # fmt: skip


def _experts(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    skews = {"balanced": 0.0, "uniform": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
    plain = np.array(["nongated" in name for name in columns.text("kernel_source").tolist()])
    return _all(columns, "experts"), _formats(columns, "moe_dtype"), {
        "tokens": columns.number("num_tokens"),
        "hidden": columns.number("hidden_size"),
        "inter": columns.number("inter_size"),
        "top_k": columns.number("topk"),
        "experts": columns.number("num_experts"),
        "tp": columns.number("moe_tp_size"),
        "ep": columns.number("moe_ep_size"),
        "skew": np.array([skews.get(name, np.nan) for name in columns.text("distribution").tolist()]),
        "matrices": np.where(plain, 2.0, 3.0),
    }  # fmt: skip


def _state(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    sources = columns.text("kernel_source").tolist()
    decodes = (columns.text("phase") == "generation").tolist()
    kernels = np.array(
        [
            f"convolution{'_decode' if decode else ''}"
            if "conv1d" in source
            else f"state_{'decode' if decode else 'prefill'}"
            for source, decode in zip(sources, decodes, strict=True)
        ]
    )
    heads, key_dim = columns.number("num_k_heads"), columns.number("head_k_dim")
    value_heads, value_dim = columns.number("num_v_heads"), columns.number("head_v_dim")
    return kernels, _all(columns, "bf16"), {
        "batch": columns.number("batch_size"),
        "tokens": np.where(np.array(decodes), 1.0, columns.number("seq_len")),
        "heads": value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "channels": 2 * heads * key_dim + value_heads * value_dim,
    }  # fmt: skip


def _mamba(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    """Only the convolution is timed; its channels are those of x, B and C (Dao and Gu 2024, figure 6)."""
    inner = columns.number("nheads") * columns.number("head_dim")
    decodes = columns.text("phase") == "generation"
    return np.where(decodes, "convolution_decode", "mamba_convolution"), _all(columns, "bf16"), {
        "batch": columns.number("batch_size"),
        "tokens": np.where(decodes, 1.0, columns.number("seq_len")),
        "heads": columns.number("nheads"),
        "key_dim": columns.number("d_state"),
        "value_dim": columns.number("head_dim"),
        "channels": inner + 2 * columns.number("n_groups") * columns.number("d_state"),
    }  # fmt: skip


def _collective(columns: Columns, op: str) -> tuple[Any, Any, dict[str, Array]]:
    column = "nccl_dtype" if "nccl_dtype" in columns.texts else "allreduce_dtype"
    element = np.where(columns.text(column) == "int8", 1.0, 2.0)
    kernel = {"alltoall": "all_to_all"}.get(op, op)
    return _all(columns, kernel), _all(columns, "bf16"), {
        "n_bytes": columns.number("message_size") * element,  # tables count elements
        "ranks": columns.number("num_gpus"),
    }  # fmt: skip


OPERATORS: Mapping[str, Operator] = {
    "gemm": Operator(read=_gemm, dtype_column="gemm_dtype"),
    "generation_attention": Operator(read=_decode, dtype_column="kv_cache_dtype"),
    "context_attention": Operator(read=_prefill, dtype_column="attn_dtype"),
    **dict.fromkeys(("mla_generation", "generation_mla"), Operator(read=_mla_decode, dtype_column="kv_cache_dtype")),
    **dict.fromkeys(("mla_context", "context_mla"), Operator(read=_mla_prefill, dtype_column="mla_dtype")),
    "moe": Operator(read=_experts, dtype_column="moe_dtype"),
    "gdn": Operator(read=_state),
    "mamba2": Operator(read=_mamba),
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "alltoall"), Operator(read=_collective, family="collective")
    ),
}
NOT_FITTED = {
    "mla_context_module": "latent attention with its projections in one figure: not one kernel",
    "mla_generation_module": "latent attention with its projections in one figure: not one kernel",
}
