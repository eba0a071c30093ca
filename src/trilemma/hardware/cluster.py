"""Accelerators wired into nodes and nodes into a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """``gpus`` accelerators of one kind, ``gpus_per_node`` to a node; ``node_bytes_per_s`` is network per GPU, one way."""

    accelerator: Accelerator
    gpus: int = 1
    gpus_per_node: int = 8
    node_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= 2**20:
            raise InputError(f"{self.gpus} GPUs is out of range; give a whole number of at least 1")
        if self.gpus_per_node < 1:
            raise InputError(f"--gpus-per-node {self.gpus_per_node} is out of range; give a whole number of at least 1")

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)
