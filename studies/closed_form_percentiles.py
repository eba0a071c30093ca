"""P50 and P99 of the closed form beside the simulation, over models, lengths and loads.

``python studies/closed_form_percentiles.py [--requests N] [--own]``. Poisson arrivals at shares of the rate at which the plan is
saturated, all of one length as the closed form takes them. The last lines are the median ratio of the closed form to the
simulation and how far it is off, by load and figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import trilemma as tl
from trilemma.ask.simulate import question_of
from trilemma.simulation.serving.deployment import simulated_plan
from trilemma.simulation.serving.load_curve import saturation_of
from trilemma.simulation.serving.stated import stated_traffic

PLANS = (
    ("llama-3.1-8b", "h100-sxm", "vllm"),
    ("llama-3.1-70b", "h100-sxm:4", "vllm"),
    ("qwen3-30b-a3b", "h100-sxm", "vllm"),
    ("llama-3.1-8b", "h100-sxm", "sglang"),
    ("gpt-oss-120b", "b200", "vllm"),
)
LENGTHS = ((512, 512), (1024, 256), (4096, 256))
SHARES = (0.2, 0.5, 0.8, 0.95)
FIGURES = (("ttft_ms", "ttft_ms"), ("itl_ms", "itl_ms"), ("request_ms", "e2e_ms"))
_NOTHING = {"trace": None, "lengths": None, "scale_rate": 1.0, "begin_s": 0.0, "span_s": None}


def compared(
    model: str, gpu: str, engine: str, lengths: tuple[int, int], requests: int, *, own: bool
) -> list[dict[str, float]]:
    """One row a load: closed form and simulation of each percentile in milliseconds; each at the share of its ``own``
    saturation, or both at that of the simulation's."""
    isl, osl = (str(mean) for mean in lengths)
    context = 2 * sum(lengths)
    plan = simulated_plan(question_of(model, gpu, engine=engine, context=context), typical_tokens=sum(lengths))
    at_once = stated_traffic(arrivals="poisson:1", isl=isl, osl=osl, requests=2000, seed=1, **_NOTHING)
    saturation = saturation_of(plan, list(at_once.again()))
    asked = {"engine": engine, "isl": lengths[0], "osl": lengths[1], "context": context}
    most = tl.fit(model, gpu, rate=saturation / 2, **asked).to_dict()["speed"]["most_requests_per_s"]["value"]
    rows = []
    for share in SHARES:
        rate = saturation * share
        said = tl.fit(model, gpu, rate=most * share if own else rate, **asked).to_dict()["speed"]
        seen = tl.simulate(
            model, gpu, engine=engine, context=context, arrivals=f"poisson:{rate:.6g}", isl=isl, osl=osl, requests=requests,
            bounds=False, seed=2,
        ).to_dict()["metrics"]  # fmt: skip
        row = {"share": share}
        for name, other in FIGURES:
            for percentile in ("p50", "p99"):
                if name in said and percentile in said[name]:
                    row[f"{name} {percentile}"] = said[name][percentile] / seen[other][percentile]
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--own", action="store_true", help="each at shares of what it says is saturated itself")
    arguments = parser.parse_args(argv)
    rows = []
    for model, gpu, engine in PLANS:
        for lengths in LENGTHS:
            for row in compared(model, gpu, engine, lengths, arguments.requests, own=arguments.own):
                rows.append(row)
                told = " ".join(f"{name} {ratio:.2f}" for name, ratio in row.items() if name != "share")
                print(f"{model} {gpu} {engine} {lengths[0]}/{lengths[1]} at {row['share']:.0%}: {told}", flush=True)
    print("\n| load | " + " | ".join(f"{name} {one}" for name, _ in FIGURES for one in ("P50", "P99")) + " |")
    for share in SHARES:
        cells = []
        for name, _ in FIGURES:
            for percentile in ("p50", "p99"):
                ratios = np.array(
                    [
                        row[f"{name} {percentile}"]
                        for row in rows
                        if row["share"] == share and f"{name} {percentile}" in row
                    ]
                )
                cells.append(f"{np.median(ratios):.2f}, {np.median(np.abs(ratios - 1)):.0%}" if len(ratios) else "-")
        print(f"| {share:.0%} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
