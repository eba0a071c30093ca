#!/usr/bin/env python3
"""Relations that hold between answers, whatever is asked: random questions, seeded, each held to several.

    python scripts/relations 20000 [--seed 1] [--only NAME]

Counts questions asked (variants of one too), and how often each relation was tried, could not be asked, and was broken, with the
shortest questions that break it. Exit 1 when any is broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from relations.runs import RELATIONS, run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(RELATIONS))
    given, start = parser.parse_args(), time.time()
    found = run(given.number, seed=given.seed, only=given.only)
    for name, tally in found.items():
        print(f"{name}: {len(tally.broken)} of {tally.tried} broken, {tally.unasked} could not be asked")
        for question, why in sorted(tally.broken, key=lambda one: len(one[0]))[:4]:
            print(f"    {question}\n        {why}")
    broken = sum(len(tally.broken) for tally in found.values())
    print(f"{given.number} questions, {broken} broken, {time.time() - start:.0f} s")
    sys.exit(int(broken > 0))
