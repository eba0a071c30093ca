"""For each kernel: its formula over measured shapes, what it cannot do with less than, and which shapes are held out together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trilemma.hardware import find
from trilemma.quantities import Array
from trilemma.timing.kernels import attention, collectives, experts, gemm, linear_state, mla
from trilemma.timing.kernels.fitted import KernelCoefficients, on_card
from trilemma.timing.kernels.shapes import causal_pairs, seen

if TYPE_CHECKING:
    from trilemma.measured.kernels.tables import KernelRows


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastWork:
    """Bytes that must cross memory or the link and FLOPs without padding, with the datasheet rates they are judged by."""

    n_bytes: Array
    flops: Array
    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelModel:
    """``seconds(coefficients, rows)``; ``unit`` names the shapes that are left out together when a fit is judged."""

    seconds: Callable[[KernelCoefficients, KernelRows], Any]
    work: Callable[[KernelCoefficients, Mapping[str, Array]], tuple[Any, Any]]
    unit: tuple[str, ...]
    over_link: bool = False

    def least_work(self, rows: KernelRows) -> LeastWork:
        c = blank(rows, {})
        n_bytes, flops = self.work(c, rows.shapes)
        like = rows.seconds
        return LeastWork(
            n_bytes=np.broadcast_to(np.asarray(n_bytes, dtype=float), like.shape),
            flops=np.broadcast_to(np.asarray(flops, dtype=float), like.shape),
            bytes_per_s=c.link_bytes_per_s if self.over_link else c.bytes_per_s,
            flops_per_s=c.flops_per_s,
        )


def blank(rows: KernelRows, values: Mapping[str, float]) -> KernelCoefficients:
    """``values`` on the card of ``rows``."""
    return on_card(
        find(rows.accelerator), kernel=rows.kernel, engine=rows.engine, dtype=rows.dtype, values=dict(values)
    )


def kv_bytes(dtype: str) -> float:
    """Bytes of a cached element by the format of an attention kernel."""
    return 1.0 if dtype in ("bf16_kv8", "fp8") else 2.0


def model_of(kernel: str) -> KernelModel:
    """The model of ``kernel``."""
    return _MODELS[kernel]


def _shapes(rows: KernelRows, *names: str) -> list[Array]:
    return [rows.shapes[name] for name in names]


def _decode_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    shapes = _shapes(rows, "batch", "context", "heads", "kv_heads", "head_dim")
    return attention.decode_attention_s(c, *shapes, window=rows.shapes["window"], kv_bytes=kv_bytes(c.dtype))


def _prefill_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    shapes = _shapes(rows, "batch", "tokens", "heads", "kv_heads", "head_dim")
    return attention.prefill_attention_s(
        c, *shapes, cached=rows.shapes["cached"], window=rows.shapes["window"], kv_bytes=kv_bytes(c.dtype)
    )


def _mla_decode_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    return mla.mla_decode_s(c, *_shapes(rows, "batch", "context", "heads"), kv_bytes=kv_bytes(c.dtype))


def _mla_prefill_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    shapes = _shapes(rows, "batch", "tokens", "heads")
    return mla.mla_prefill_s(c, *shapes, cached=rows.shapes["cached"], kv_bytes=kv_bytes(c.dtype))


def _experts_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    s = rows.shapes
    return experts.experts_s(
        c, s["tokens"], s["hidden"], s["inter"], s["top_k"], s["experts"],
        tp=s["tp"], ep=s["ep"], skew=s["skew"], matrices=s["matrices"],
    )  # fmt: skip


def _state_decode_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    return linear_state.state_decode_s(c, *_shapes(rows, "batch", "heads", "key_dim", "value_dim"))


def _state_prefill_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    return linear_state.state_prefill_s(c, *_shapes(rows, "batch", "tokens", "heads", "key_dim", "value_dim"))


def _convolution_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    return linear_state.convolution_s(c, *_shapes(rows, "batch", "tokens", "channels"))


def _collective_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    return collectives.collective_s(c, rows.shapes["n_bytes"], rows.shapes["ranks"])


def _gemm_s(c: KernelCoefficients, rows: KernelRows) -> Any:
    return gemm.gemm_s(c, *_shapes(rows, "m", "n", "k"))


def _gemm_work(c: KernelCoefficients, s: Mapping[str, Array]) -> tuple[Any, Any]:
    return s["n"] * s["k"] * c.weight_bytes, 2 * s["m"] * s["n"] * s["k"]


def _decode_work(c: KernelCoefficients, s: Mapping[str, Array]) -> tuple[Any, Any]:
    read = seen(s["context"], s["window"])
    cached = s["batch"] * 2 * read * s["kv_heads"] * s["head_dim"]
    return cached * kv_bytes(c.dtype), 0.0


def _prefill_work(_: KernelCoefficients, s: Mapping[str, Array]) -> tuple[Any, Any]:
    # a cache in FP8 may be multiplied in FP8 too, at up to twice the BF16 peak, so pairs count half
    return 0.0, 2 * s["batch"] * s["heads"] * s["head_dim"] * causal_pairs(s["tokens"], s["cached"], s["window"])


def _mla_work(c: KernelCoefficients, s: Mapping[str, Array]) -> tuple[Any, Any]:
    return s["batch"] * s["context"] * 576 * kv_bytes(c.dtype), 0.0


def _experts_work(_: KernelCoefficients, s: Mapping[str, Array]) -> tuple[Any, Any]:
    rows = np.where(s["skew"] > 0, 0.0, s["tokens"] * s["top_k"] / s["ep"])
    return 0.0, 2 * s["matrices"] * rows * s["hidden"] * s["inter"] / s["tp"]


def _nothing(_: KernelCoefficients, __: Mapping[str, Array]) -> tuple[Any, Any]:
    return 0.0, 0.0


_HEADS = ("heads", "kv_heads", "head_dim")
_COLLECTIVE = KernelModel(seconds=_collective_s, work=_nothing, unit=("n_bytes",), over_link=True)
_MODELS: Mapping[str, KernelModel] = {
    "gemm": KernelModel(seconds=_gemm_s, work=_gemm_work, unit=("n", "k")),
    "decode_attention": KernelModel(seconds=_decode_s, work=_decode_work, unit=_HEADS),
    "prefill_attention": KernelModel(seconds=_prefill_s, work=_prefill_work, unit=_HEADS),
    "mla_decode": KernelModel(seconds=_mla_decode_s, work=_mla_work, unit=("batch", "heads")),
    "mla_prefill": KernelModel(seconds=_mla_prefill_s, work=_nothing, unit=("batch", "heads")),
    "experts": KernelModel(seconds=_experts_s, work=_experts_work, unit=("hidden", "inter", "top_k", "experts")),
    "state_decode": KernelModel(seconds=_state_decode_s, work=_nothing, unit=("batch", "heads")),
    "state_prefill": KernelModel(seconds=_state_prefill_s, work=_nothing, unit=("batch", "heads")),
    **dict.fromkeys(
        ("convolution", "convolution_decode", "mamba_convolution"),
        KernelModel(seconds=_convolution_s, work=_nothing, unit=("batch", "channels")),
    ),
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), _COLLECTIVE),
}  # fmt: skip
