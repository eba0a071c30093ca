"""The documents that people script against: ``python -m trilemma.report.schemas`` writes their schemas anew.

They ship under ``data/schemas``; tests keep the two equal and check real documents against them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trilemma.auditing.checklist import Audit
from trilemma.data.digest import DATA
from trilemma.diagnosis.judging import Diagnosis
from trilemma.estimate.differences import ChangesJudged
from trilemma.estimate.estimate import Estimate
from trilemma.facilities.answer import Facility
from trilemma.linting.files import Linting
from trilemma.machine.answer import WhatRuns
from trilemma.machine.examination import Examination
from trilemma.measuring.serving.outcome import ServedLoad
from trilemma.precision.gate import GateResult
from trilemma.precision.lab.experiment import LabResult
from trilemma.precision.watch.findings import Watched
from trilemma.report.measured_card import MeasurementDocument
from trilemma.report.pilot import PilotDocument
from trilemma.report.recommendation import RecommendationDocument
from trilemma.report.training_plans import TrainingPlansDocument
from trilemma.report.upgrade import UpgradeDocument
from trilemma.report.validation import ValidationDocument
from trilemma.schemas import schema_of_type
from trilemma.simulation.cluster.outcome import ClusterSimulation
from trilemma.simulation.serving.compared import PlanRanking
from trilemma.simulation.serving.outcome import ServingSimulation

#: Schema file → the type it is made from.
DOCUMENTS: dict[str, Any] = {
    "estimate": Estimate,
    "plans": TrainingPlansDocument,
    "validation": ValidationDocument,
    "simulation": ServingSimulation,
    "replayed-plans": PlanRanking,
    "train-lab": LabResult,
    "gate": GateResult,
    "watch": Watched,
    "cluster": ClusterSimulation,
    "facility": Facility,
    "here": WhatRuns,
    "doctor": Examination,
    "lint": Linting,
    "findings": Diagnosis,
    "audit": Audit,
    "diff": ChangesJudged,
    "measurement": MeasurementDocument,
    "pilot": PilotDocument,
    "load": ServedLoad,
    "recommendation": RecommendationDocument,
    "upgrade": UpgradeDocument,
}
SCHEMAS = DATA / "schemas"


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one document."""
    schema = schema_of_type(DOCUMENTS[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"trilemma {name}", **schema}


def write_schemas(folder: Path = SCHEMAS) -> None:
    """Write every schema under ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.schema.json").write_text(json.dumps(schema_of(name), indent=2) + "\n")


if __name__ == "__main__":
    write_schemas()
