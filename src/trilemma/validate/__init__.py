"""Predicted against measured: read a measured table, ask the estimator the same question, report the error by class."""

from trilemma.validate.judgement import Comparison, Judgement, Start
from trilemma.validate.metrics import Errors, PairOrder, VerdictScore
from trilemma.validate.requirements import Requirement, parse_requirement
from trilemma.validate.tables import Row, Table, TableKind, read_table
from trilemma.validate.validation import Validation, summarise

__all__ = [
    "Comparison",
    "Errors",
    "Judgement",
    "PairOrder",
    "Requirement",
    "Row",
    "Start",
    "Table",
    "TableKind",
    "Validation",
    "VerdictScore",
    "parse_requirement",
    "read_table",
    "summarise",
]
