"""An experiment and everything found in it: runs, verdicts, the worth of the early warning; one result, many renderings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trilemma.columns import column, document_of
from trilemma.precision.lab.matrix import Progress, run_matrix
from trilemma.precision.lab.presets import Experiment
from trilemma.precision.lab.records import LabRun
from trilemma.precision.lab.verdict import RegimeVerdict, WarningRank, judge, warning_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class LabResult:
    """All runs of an experiment and what they say."""

    COLUMNS: ClassVar = {
        "schema": {}, "preset": {}, "text": {}, "verdicts": column("regimes", keep="empty"),
        "warning": column("early_warning"), "cpu_s": {}, "runs": column(keep="empty"),
    }  # fmt: skip

    schema: Literal["trilemma/train-lab@1"] = "trilemma/train-lab@1"
    experiment: Experiment
    runs: tuple[LabRun, ...]
    verdicts: tuple[RegimeVerdict, ...]
    warning: WarningRank
    text: str

    @property
    def preset(self) -> str:
        return self.experiment.name

    @property
    def cpu_s(self) -> float:
        return round(sum(run.cpu_s for run in self.runs), 1)

    def to_json(self, *, full: bool = False) -> dict[str, Any]:
        """The document of ``--json``; ``full`` adds the signals of every tensor."""
        return document_of(self, exact=True, explain=full)


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
    return LabResult(
        experiment=experiment,
        runs=tuple(runs),
        verdicts=tuple(judge(runs)),
        warning=warning_rank(runs),
        text=text_source,
    )
