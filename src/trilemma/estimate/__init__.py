"""What it costs: model, cluster, workload and plan joined into one estimate."""

from trilemma.estimate.checking import check_command
from trilemma.estimate.estimate import (
    Bottleneck,
    CacheEstimate,
    Estimate,
    Latency,
    MemoryEstimate,
    OperatorTime,
    Remedy,
    SpeedEstimate,
    Verdict,
)
from trilemma.estimate.layouts import check_layout, violations
from trilemma.estimate.serving import estimate

__all__ = [
    "Bottleneck",
    "CacheEstimate",
    "Estimate",
    "Latency",
    "MemoryEstimate",
    "OperatorTime",
    "Remedy",
    "SpeedEstimate",
    "Verdict",
    "check_command",
    "check_layout",
    "estimate",
    "violations",
]
