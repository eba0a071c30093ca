"""Collects the tensors of a model while a family reader walks through its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from trilemma.errors import InputError
from trilemma.formats.formats import Format
from trilemma.models.architecture import ModelPart, Shard, Tensor

#: (tensor name, role) → how the checkpoint stores it.
FormatOf: TypeAlias = Callable[[str, str], Format]

#: No model has a tensor or a total near this; beyond it a configuration is a mistake or an attack.
MOST_ELEMENTS = 2**50


class Builder:
    """Adds tensors under the current prefix, part and layer.

    Roles in use: ``embedding``, ``head``, ``norm``, ``bias``, ``attention.{q,k,v,o,gate,sinks}``,
    ``mla.{q,q_a,q_b,kv_a,kv_b,o}``, ``indexer.{q,k,weights}``, ``compressor``, ``recurrent.{in,conv,state,out}``,
    ``ffn.{gate,up,down}``, ``experts.{gate,up,down}``, ``shared.{gate,up,down}``, ``latent.{down,up}``, ``router``,
    ``mtp.projection``, ``vision.*``, ``hyper``, ``table`` (integers, no weights).
    """

    def __init__(self, *, dtype: Format, format_of: FormatOf | None = None) -> None:
        self.tensors: list[Tensor] = []
        self.dtype = dtype
        self._format_of = format_of
        self.part: ModelPart = "layers"
        self.layer: int | None = None
        self.prefix = ""

    def enter(self, part: ModelPart, prefix: str = "", layer: int | None = None) -> None:
        """Add what follows to ``part``, with names that begin with ``prefix``."""
        self.part, self.prefix, self.layer = part, prefix, layer

    def linear(
        self,
        name: str,
        role: str,
        out: int,
        width: int,
        *,
        shard: Shard = "none",
        units: int = 1,
        experts: int = 0,
        bias: bool = False,
    ) -> None:
        """A matrix ``(out, width)``, or a stack of ``experts`` of them, that a checkpoint may quantise.

        Names of a stack carry the number of its first expert. A bias is cut only along output rows: a row-parallel layer
        keeps the whole bias on every rank.
        """
        shape = (experts, out, width) if experts else (out, width)
        self._append(f"{name}.weight", role, shape, shard, units, experts, True)
        if bias:
            cut: Shard = "column" if shard == "column" else "none"
            size = (experts, out) if experts else (out,)
            self._append(f"{name}.bias", "bias", size, cut, units if cut == "column" else 1, experts, False)

    def plain(
        self,
        name: str,
        role: str,
        *shape: int,
        shard: Shard = "none",
        units: int = 1,
        experts: int = 0,
        fmt: Format | None = None,
    ) -> None:
        """A tensor that stays in the model's own format, or in ``fmt``: norms, embeddings, convolutions, routers."""
        self._append(name, role, shape, shard, units, experts, False, fmt)

    def norm(self, name: str, size: int, *, bias: bool = False, shard: Shard = "none", units: int = 1) -> None:
        self._append(f"{name}.weight", "norm", (size,), shard, units, 0, False)
        if bias:
            self._append(f"{name}.bias", "norm", (size,), shard, units, 0, False)

    def _append(
        self,
        name: str,
        role: str,
        shape: tuple[int, ...],
        shard: Shard,
        units: int,
        experts: int,
        quantizable: bool,
        fmt: Format | None = None,
    ) -> None:
        full = self.prefix + name
        elements = 1
        for size in shape:
            elements *= size
        if not 0 < elements < MOST_ELEMENTS:
            raise InputError(f"{full} would have the shape {shape}; check the sizes in the configuration")
        if fmt is None:
            fmt = self.dtype if self._format_of is None else self._format_of(full, role)
        self.tensors.append(
            Tensor(
                name=full,
                role=role,
                shape=shape,
                format=fmt,
                part=self.part,
                layer=self.layer,
                shard=shard,
                shard_units=units,
                experts=experts,
                quantizable=quantizable,
            )
        )
