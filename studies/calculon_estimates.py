"""Seconds a step and bytes a GPU by calculon, run by the environment that has it: jobs as JSON on stdin, one answer a line.

A job is ``{"system": FILE, "application": {...}, "execution": {...}}`` as calculon's own files state them.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from typing import Any


def main() -> None:
    calculon: Any = importlib.import_module("calculon")
    llm: Any = importlib.import_module("calculon.llm").Llm
    for job in json.load(sys.stdin):
        try:
            one = llm(llm.Application(job["application"]), logging.getLogger("calculon"))
            described = calculon.io.read_json_file(job["system"])
            # Its attention keeps every score, which no card holds at these lengths: seconds are asked of a card that could.
            described["mem1"]["GiB"] = 10_000
            system = calculon.System(described)
            one.compile(system, llm.Execution.from_json(job["execution"]))
            one.run(system)
        except Exception as error:  # whatever it raises is its answer
            answer: dict[str, Any] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        else:
            answer = {"step_s": one.get_total_time(), "bytes": one.get_mem_tier1_cap_req()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
