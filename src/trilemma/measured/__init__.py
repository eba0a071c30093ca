"""Evidence: measured tables, the questions their rows ask, judgement of the answers, and numbers fitted to them."""

from trilemma.measured.judgement import FigureComparison, Judgement, StartVerdict
from trilemma.measured.metrics import Errors, PairOrder, VerdictScore
from trilemma.measured.requirements import Requirement, parse_requirement
from trilemma.measured.tables import MeasuredTable, Row, TableKind, read_table
from trilemma.measured.validation import Validation, summarise

__all__ = [
    "Errors",
    "FigureComparison",
    "Judgement",
    "MeasuredTable",
    "PairOrder",
    "Requirement",
    "Row",
    "StartVerdict",
    "TableKind",
    "Validation",
    "VerdictScore",
    "parse_requirement",
    "read_table",
    "summarise",
]
