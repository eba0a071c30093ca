"""What runs of publishers that were not fitted say of the widths of answers: each left out of the widths that judge it.

    python studies/other_publishers.py TABLE.csv … [--assume COLUMN=VALUE] [--write]

Prints of each figure, kind of load and publisher the rows, the share inside bounds made of the other publishers alone, and their
median half-width; then what all together lie apart beside their classes, which ``--write`` puts into the shipped terms.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import trilemma
from trilemma.data.files import table_text
from trilemma.measured.assumptions import filled, parse_assumptions
from trilemma.measured.serving.speed.elsewhere import held, widths_of
from trilemma.measured.serving.speed.refit import elsewhere_rows
from trilemma.measured.tables import read_table
from trilemma.timing import serving_terms

SHIPPED = Path(trilemma.__file__).parent / "data" / "coefficients" / "serving_terms.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", metavar="TABLE.csv")
    parser.add_argument("--assume", action="append", default=[], metavar="COLUMN=VALUE")
    parser.add_argument("--models")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    terms = serving_terms.shipped()
    found = []
    for path in arguments.tables:
        table = read_table(path)
        told = parse_assumptions(arguments.assume, table.columns)
        found += elsewhere_rows(filled(table.rows, told), terms, models_dir=arguments.models)
    print(f"{'figure':18} {'publisher':34} {'rows':>5} {'inside':>7} {'half-width of the others':>25}")
    for (name, origin), (rows, inside, width) in held(found).items():
        print(f"{name:18} {origin[-34:]:34} {rows:5} {inside:7.0%} {math.expm1(width):+25.0%}")
    widths = widths_of(found)
    print({name: round(width, 4) for name, width in widths.items()})
    if arguments.write:
        document = json.loads(SHIPPED.read_text(encoding="utf-8"))
        document["apart"] = {name: round(width, 4) for name, width in widths.items()}
        SHIPPED.write_text(table_text(document), encoding="utf-8")


if __name__ == "__main__":
    main()
