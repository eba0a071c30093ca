"""What shares the cards with the model that is trained: reference, reward and critic models, a colocated inference engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trilemma.errors import InputError, shorten

#: A model that only runs, another that is trained beside, an engine that generates, or the trained model's own weights, gathered
#: whole on every card while it generates by itself.
Role = Literal["frozen", "trained", "engine", "gathered"]
#: What of the trained model's state leaves the card while an engine generates.
Frees = Literal["nothing", "optimizer", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Companion:
    """One of them, by ``name`` in words ("reference model").

    ``parameters`` of its own (None: as many as the model that is trained), held in ``format``; ``sharded`` over the
    data-parallel ranks as the trained model is, else a copy on each; ``offloaded``: on the host but when it runs. An engine
    takes ``share`` of each card's memory; ``asleep`` says that it gives this back while the model trains, ``frees`` what of the
    trained model's state makes room for it in turn.
    """

    name: str
    role: Role
    parameters: float | None = None
    format: str = "bf16"
    sharded: bool = False
    offloaded: bool = False
    share: float = 0.0
    asleep: bool = False
    frees: Frees = "nothing"

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise InputError(f"role {shorten(str(self.role))!r} is not known; use {', '.join(get_args(Role))}")
        if self.frees not in get_args(Frees):
            raise InputError(f"{shorten(str(self.frees))!r} is no state that leaves; use {', '.join(get_args(Frees))}")
        if not 0 <= self.share < 1:
            raise InputError(
                f"the share {self.share:g} of a card's memory for {shorten(self.name)} is out of range; give one from 0 up to,"
                " not including, 1"
            )
        if self.parameters is not None and not 0 < self.parameters < 1e15:
            raise InputError(
                f"{self.parameters:g} parameters of {shorten(self.name)} is out of range; give a number above 0"
            )
