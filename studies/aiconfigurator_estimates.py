"""Estimates of aiconfigurator 0.12, or of its successor, for a list of deployments; runs in the environment of that tool.

    python studies/aiconfigurator_estimates.py [MODULE] < jobs.json > answers.jsonl

``jobs.json`` is a list of jobs, each a list of arguments of the tool's own single-point estimate: the first that it answers
counts. One JSON line answers each job, in order: ``ttft_ms`` and ``tpot_ms``, or ``error`` (its own words for the last),
the index of the arguments answered and the seconds taken. ``MODULE`` is where
``cli_estimate`` lies. What the tool logs goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import sys
import time
import warnings
from typing import Any


def main() -> None:
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        estimate = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "aiconfigurator.cli.api").cli_estimate
    logging.disable(logging.WARNING)
    for job in json.load(sys.stdin):
        start = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            answer = _first_answer(estimate, job)
        print(json.dumps({**answer, "seconds": time.perf_counter() - start}), flush=True)


def _first_answer(estimate: Any, job: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"error": "nothing was asked"}
    for index, arguments in enumerate(job):
        try:
            found = estimate(**arguments)
        except Exception as error:  # whatever it raises is its answer
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        else:
            return {"ttft_ms": float(found.ttft), "tpot_ms": float(found.tpot), "asked": index}
    return answer


if __name__ == "__main__":
    main()
