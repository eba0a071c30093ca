"""Counted and predicted activations side by side, as a table or a document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trilemma.measured.activations.judge import ActivationCheck
from trilemma.report.tables import render_table


def render_check(check: ActivationCheck, *, explain: bool = False, width: int | None = None) -> str:
    """Totals and error; with ``explain`` every storage counted and every one predicted."""
    model = check.model
    text = [
        f"{model.name}: {len(model.layers)} layers, hidden {model.hidden}, vocabulary {model.vocab},"
        f" {check.measured.parameters:,} parameters",
        f"{check.micro_batch} x {check.seq} tokens, {check.dtype}, {check.attention} attention,"
        f" {'every layer checkpointed' if check.checkpointed else 'no recompute'}"
        f"{', without data (causal mask not materialised)' if check.fake else ''}",
        "",
        render_table(
            ["", "bytes saved for backward"],
            [
                ["measured", f"{check.measured_bytes:,}"],
                ["predicted", f"{check.predicted_bytes:,.0f}"],
                ["error", f"{100 * check.error:+.3f} %"],
            ],
            align="lr",
        ),
    ]
    if explain:
        text += ["", "predicted", _predicted(check, width), "", "measured", _measured(check, width)]
    return "\n".join(text)


def _predicted(check: ActivationCheck, width: int | None) -> str:
    rows = [
        [row.place, row.name, f"{row.bytes:,.0f}", str(row.layers), f"{row.total_bytes:,.0f}"]
        for row in check.predicted
    ]
    return render_table(["where", "tensor", "bytes", "layers", "total"], rows, align="llrrr", width=width)


def _measured(check: ActivationCheck, width: int | None) -> str:
    rows = [
        [tensor.module or "loss", "x".join(map(str, tensor.shape)) or "scalar", tensor.dtype, f"{tensor.bytes:,}"]
        for tensor in check.measured.tensors
    ]
    return render_table(["saved first by", "shape", "dtype", "bytes"], rows, align="lllr", width=width)


def check_document(check: ActivationCheck) -> dict[str, Any]:
    """The same as plain data, ``trilemma/activations@1``."""
    return {
        "schema": "trilemma/activations@1",
        "inputs": {
            "model": check.model.name,
            "layers": len(check.model.layers),
            "hidden": check.model.hidden,
            "vocab": check.model.vocab,
            "micro_batch": check.micro_batch,
            "seq": check.seq,
            "dtype": check.dtype,
            "attention": check.attention,
            "checkpointed": check.checkpointed,
            "fake": check.fake,
        },
        "measured_bytes": check.measured_bytes,
        "predicted_bytes": check.predicted_bytes,
        "error": check.error,
        "predicted": _rows(
            {"place": row.place, "name": row.name, "bytes": row.bytes, "layers": row.layers} for row in check.predicted
        ),
        "measured": _rows(
            {"module": one.module, "shape": list(one.shape), "dtype": one.dtype, "bytes": one.bytes}
            for one in check.measured.tensors
        ),
    }


def _rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(rows)
