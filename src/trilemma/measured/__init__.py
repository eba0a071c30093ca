"""Evidence: measured tables, the questions their rows ask, judgement of the answers, and numbers fitted to them."""

from trilemma.measured.judgement import Comparison, Judgement, Start
from trilemma.measured.metrics import Errors, PairOrder, VerdictScore
from trilemma.measured.requirements import Requirement, parse_requirement
from trilemma.measured.tables import Row, Table, TableKind, read_table
from trilemma.measured.validation import Validation, summarise

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
