"""Precision plans as the configuration files of quantisation toolkits and engines."""

from trilemma.precision.export.plan_modules import PlanModules, modules_of
from trilemma.precision.export.writers import TARGETS, write_export

__all__ = ["TARGETS", "PlanModules", "modules_of", "write_export"]
