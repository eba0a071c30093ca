"""Where it runs: accelerators, their catalogue, and how they are wired."""

from trilemma.hardware.accelerator import Accelerator, Figure, Link
from trilemma.hardware.catalogue import all_accelerators, find, find_measured
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.gpu_argument import parse_gpu_argument
from trilemma.hardware.memory import memory_warnings, runtime_total

__all__ = [
    "Accelerator",
    "Cluster",
    "Figure",
    "Link",
    "all_accelerators",
    "find",
    "find_measured",
    "memory_warnings",
    "parse_gpu_argument",
    "runtime_total",
]
