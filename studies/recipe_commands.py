"""Commands of a public collection of recipes, as `trilemma check` reads them: parsed, model unknown, refused, and verdicts.

``python studies/recipe_commands.py TABLE.csv [--models DIR]``. The table has columns ``model``, ``hardware``, ``node_gpus``,
``label`` (``verified`` or ``listed``) and ``command``, as rendered from vllm-project/recipes. Commands that do not start, flags
in doubt and errors are printed one by one.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from trilemma import Cluster, InputError, check
from trilemma.ask.unknown_models import UnknownModel
from trilemma.hardware.catalogue import find_measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One row: its outcome (``starts``, ``does not start``, ``model unknown``, ``flags in doubt``, ``error``) and why."""

    row: dict[str, str]
    outcome: str
    why: str = ""


def judge(row: dict[str, str], models: str | None) -> Judged:
    try:
        name = re.sub(r"_\d+x$", "", row["hardware"]).replace("_", "-")  # rtx_5090_2x: two of them
        card, _ = find_measured(name)
        answer = check(row["command"], gpu=Cluster.of(card, int(row["node_gpus"])), models=models)
    except UnknownModel as error:
        return Judged(row=row, outcome="flags in doubt" if error.doubted else "model unknown", why=str(error))
    except InputError as error:
        return Judged(row=row, outcome="error", why=str(error))
    return Judged(row=row, outcome="starts" if answer.fits else "does not start", why=answer.reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--models", help="folder of configurations <org>--<name>/config.json")
    asked = parser.parse_args()
    with asked.table.open(newline="", encoding="utf-8") as file:
        judged = [judge(row, asked.models) for row in csv.DictReader(file)]
    for label in ("verified", "listed"):
        of_label = [one for one in judged if one.row["label"] == label]
        counted = Counter(one.outcome for one in of_label)
        print(label, len(of_label), dict(counted))
    parsed = [one for one in judged if one.outcome not in ("error", "flags in doubt")]
    known = [one for one in judged if one.outcome not in ("model unknown", "flags in doubt")]
    read = sum(one.outcome != "error" for one in known)
    print(
        f"model known: {read} of {len(known)} parsed; all: {len(parsed)} of {len(judged)} ({len(parsed) / len(judged):.1%})"
    )
    for one in judged:
        if one.outcome not in ("starts", "model unknown"):
            print(f"\n{one.outcome} [{one.row['label']} {one.row['hardware']}] {one.row['command']}\n  {one.why}")


if __name__ == "__main__":
    main()
