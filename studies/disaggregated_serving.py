"""Prefill and decode apart: predicted against measured, row by row; nothing is fitted to these rows.

    python studies/disaggregated_serving.py tests/data/disaggregated_sample.csv [--rows]

The table holds one run a row: ``model, precision, gpu, engine``, ``prefill_workers, prefill_tp, prefill_dp, prefill_ep`` and
the same for decode, nominal ``isl, osl`` of which the mean request has ``length_share``, ``concurrency``, ``ttft_ms, tpot_ms``.
The last lines are the 5th and 95th percentile of measured over predicted: the class "disaggregated" of the error bars.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trilemma.engines import canonical
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, model_work
from trilemma.timing.pools import Pools

#: Ranks of attention from which on the scripts of these runs send tokens to their experts alone (launch_scripts.toml).
_ROUTED_FROM = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One measured run and what is said of it, in milliseconds."""

    row: Mapping[str, str]
    ttft_ms: float
    tpot_ms: float
    prefill_busy: float

    def ratio(self, name: str) -> float:
        """Predicted over measured."""
        return float(getattr(self, name)) / float(self.row[name])


def runs(path: Path) -> Iterator[Run]:
    """Every row of the table with its prediction."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield _predicted(row)


def _predicted(row: Mapping[str, str]) -> Run:
    accelerator, model = find(row["gpu"]), _model(row)
    prefill, decode = _layout(row, "prefill"), _layout(row, "decode")
    workers = int(row["prefill_workers"]), int(row["decode_workers"])
    cluster = Cluster.of(accelerator, int(prefill.gpus) * workers[0] + int(decode.gpus) * workers[1])
    work, share = model_work(model, accelerator), float(row["length_share"])

    def machine(layout: Layout) -> Machine:
        routed = int(layout.dp) >= _ROUTED_FROM
        return Machine.serving(cluster, work=work, engine=canonical(row["engine"]), routes_tokens=routed)

    pools = Pools(
        work=work,
        machine=machine(decode),
        prefill_machine=machine(prefill),
        prefill=prefill,
        decode=decode,
        prefill_workers=workers[0],
        decode_workers=workers[1],
        isl=float(row["isl"]) * share,
        osl=float(row["osl"]) * share,
        kv_format=catalogue.get("fp8_e4m3"),
    )
    found = pools.speed(concurrency=float(row["concurrency"]))
    return Run(
        row=row,
        ttft_ms=float(found.serving.ttft_s) * 1e3,
        tpot_ms=float(found.serving.tpot_s) * 1e3,
        prefill_busy=float(found.flow.prefill_busy),
    )


def _model(row: Mapping[str, str]) -> Model:
    model = load_model(row["model"])
    narrower = row["precision"] == "fp4" and "fp4" not in str(model.quantization and model.quantization.method)
    return requantize(model, "nvfp4") if narrower else model


def _layout(row: Mapping[str, str], pool: str) -> Layout:
    return Layout(**{name: int(row[f"{pool}_{name}"]) for name in ("tp", "dp", "ep")})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", action="store_true", help="print every row")
    arguments = parser.parse_args(argv)
    found = list(runs(arguments.table))
    if arguments.rows:
        for run in found:
            figures = (f"{getattr(run, name):9,.1f} ({run.ratio(name):5.2f})" for name in ("ttft_ms", "tpot_ms"))
            print(run.row["id"][:60], *figures, f"prefill busy {run.prefill_busy:.0%}")
    for column in ("", "engine", "gpu", "precision"):
        for value in sorted({run.row[column] for run in found} if column else {"all"}):
            chosen = [run for run in found if not column or run.row[column] == value]
            print(f"{value:<12} {len(chosen):>4} rows", *(_errors(chosen, name) for name in ("ttft_ms", "tpot_ms")))
    for name in ("ttft_ms", "tpot_ms"):
        low, high = np.quantile([1 / run.ratio(name) for run in found], (0.05, 0.95))
        print(f"measured over predicted {name}: {low:.2f} to {high:.2f}")


def _errors(found: Sequence[Run], name: str) -> str:
    ratios = np.array([run.ratio(name) for run in found])
    return f"  {name} median error {np.median(np.abs(ratios - 1)):6.1%}, median ratio {np.median(ratios):.2f}"


if __name__ == "__main__":
    main()
