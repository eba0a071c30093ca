"""An experiment and everything found in it: runs, verdicts, the worth of the early warning; one result, many renderings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trilemma.precision.lab.matrix import Progress, run_matrix
from trilemma.precision.lab.presets import Experiment
from trilemma.precision.lab.records import LabRun
from trilemma.precision.lab.verdict import Mitigation, RegimeVerdict, judge, warning_rank
from trilemma.precision.signals import finite_or_none

SCHEMA = "trilemma/train-lab@1"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabResult:
    """``warning_correlation``: Spearman's rank correlation of early warning and final gap over ``warning_runs`` runs."""

    experiment: Experiment
    runs: tuple[LabRun, ...]
    verdicts: tuple[RegimeVerdict, ...]
    warning_correlation: float
    warning_runs: int
    text_source: str

    def to_json(self, *, full: bool = False) -> dict[str, Any]:
        """The document of ``--json``; ``full`` adds the signals of every tensor."""
        return {
            "schema": SCHEMA,
            "preset": self.experiment.name,
            "text": self.text_source,
            "regimes": [_regime_json(verdict) for verdict in self.verdicts],
            "early_warning": {
                "spearman": finite_or_none(self.warning_correlation),
                "runs": self.warning_runs,
            },
            "cpu_s": round(sum(run.cpu_s for run in self.runs), 1),
            "runs": [run.to_json(full=full) for run in self.runs],
        }


def run_experiment(
    experiment: Experiment,
    *,
    workers: int | None = None,
    text: str | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LabResult:
    """Train every run of ``experiment`` and judge them. Arguments as those of `matrix.run_matrix`."""
    runs = run_matrix(experiment.jobs(), workers=workers, text=text, device=device, progress=progress)
    return summarise(
        experiment, runs, text_source="generated from data/precision/lab_corpus.toml" if text is None else text
    )


def summarise(experiment: Experiment, runs: Sequence[LabRun], *, text_source: str) -> LabResult:
    """Verdicts over ``runs`` of ``experiment``."""
    correlation, count = warning_rank(runs)
    return LabResult(
        experiment=experiment,
        runs=tuple(runs),
        verdicts=tuple(judge(runs)),
        warning_correlation=correlation,
        warning_runs=count,
        text_source=text_source,
    )


def _regime_json(verdict: RegimeVerdict) -> dict[str, Any]:
    return {
        "regime": asdict(verdict.regime),
        "seed_noise": verdict.seed_noise,
        "recipes": [one.to_json() for one in verdict.recipes],
        "mitigations": {name: [_mitigation_json(one) for one in some] for name, some in verdict.mitigations.items()},
    }


def _mitigation_json(mitigation: Mitigation) -> dict[str, Any]:
    return {
        "recipe": mitigation.verdict.recipe.name,
        "outcome": mitigation.verdict.outcome,
        "gap": finite_or_none(mitigation.verdict.gap),
        "low_precision_share": round(mitigation.verdict.low_precision_share, 4),
        "changes": {name: {"from": before, "to": after} for name, (before, after) in mitigation.changes.items()},
    }
