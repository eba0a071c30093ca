"""From what a person already holds (logs, traces, dumps, telemetry) to what is wrong, why, and what mends it."""

from trilemma.diagnosis.findings import Evidence, Finding
from trilemma.diagnosis.judging import Diagnosis, judge

__all__ = ["Diagnosis", "Evidence", "Finding", "judge"]
