"""Charts of answers: pure functions from an answer to a Vega-Lite specification (plain data), and writing one to a file.

Specifications need nothing beside this package; `write_chart` needs the extra ``charts``.
"""

from trilemma.report.charts.cluster import cluster_chart
from trilemma.report.charts.comparison import comparison_chart
from trilemma.report.charts.estimate import estimate_chart
from trilemma.report.charts.pareto import pareto_chart
from trilemma.report.charts.simulation import simulation_chart
from trilemma.report.charts.training import training_chart
from trilemma.report.charts.write import chart_file, write_chart

__all__ = [
    "chart_file",
    "cluster_chart",
    "comparison_chart",
    "estimate_chart",
    "pareto_chart",
    "simulation_chart",
    "training_chart",
    "write_chart",
]
