"""How long the training search takes, and how many plans a second it prices, beside the established estimator in one run.

The question is the one of ``trilemma plan llama-3.1-70b --gpu h100-sxm:512 --train 8192 --global-batch 512``: every layout, chunk
count, micro-batch, ZeRO stage, recompute mode and recipe. Each legal plan gets its memory by tensor on the worst stage; each that
fits its step by operator, collective and schedule. The other tool is llm-analysis 0.2.2 in an environment of its own, on plans
of the same grid (its layouts, ZeRO stages and recompute modes), its logging off; it knows no search and no schedule.

    python -m venv lla && lla/bin/pip install llm-analysis==0.2.2
    python benchmarks/training_search.py [--llm-analysis lla/bin/python] [--check]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from trilemma.hardware.catalogue import find  # noqa: E402
from trilemma.hardware.cluster import Cluster  # noqa: E402
from trilemma.models.resolve import load_model  # noqa: E402
from trilemma.search.training import search_training  # noqa: E402
from trilemma.workloads import TrainingWorkload  # noqa: E402

#: The bar: so many plans looked at within so many seconds.
LEAST_PLANS, MOST_SECONDS = 100_000, 2.0
_REPEATS = 5

_OTHER = r"""
import json, logging, sys, time
logging.disable(logging.CRITICAL)
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig, get_gpu_config_by_name
from llm_analysis.logger import logger
logger.setLevel(logging.CRITICAL)
model = ModelConfig(name="llama-3.1-70b", num_layers=80, n_head=64, hidden_dim=8192, vocab_size=128256, max_seq_len=131072,
                    num_key_value_heads=8, expansion_ratio=3.5, ffn_embed_dim=28672, model_type="llama")
gpu = get_gpu_config_by_name("h100-sxm-80gb")
plans = [(tp, pp, 512 // tp // pp, zero, again) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8, 16) for zero in (0, 1, 2, 3)
         for again in (0, 1, 2, 3)]
priced = failed = 0
started = time.process_time()
for tp, pp, dp, zero, again in plans:
    try:
        analysis = LLMAnalysis(model, gpu, DtypeConfig(name="w16a16e16", weight_bits=16, activation_bits=16, embedding_bits=16),
                               ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp), flops_efficiency=0.5)
        analysis.training(batch_size_per_gpu=1, global_batch_size=512, seq_len=8192, ds_zero=DSZeRO(zero),
                          activation_recomputation=ActivationRecomputation(again), mlp_gated_linear_units=True)
        priced += 1
    except Exception:
        failed += 1
print(json.dumps({"priced": priced, "failed": failed, "cpu_s": time.process_time() - started}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--llm-analysis", metavar="PYTHON", help="interpreter of an environment with llm-analysis 0.2.2"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where the bar is missed")
    arguments = parser.parse_args()
    model, load = load_model("llama-3.1-70b"), TrainingWorkload(seq=8192, global_batch=512)
    cluster = Cluster(accelerator=find("h100-sxm"), gpus=512, gpus_per_node=8)
    walls, cores = [], []
    for _ in range(_REPEATS):
        wall, core = time.perf_counter(), time.process_time()
        found = search_training(model, cluster, load)
        walls.append(time.perf_counter() - wall)
        cores.append(time.process_time() - core)
    rate = found.legal / min(cores)
    print(f"trilemma: {found.searched:,} plans looked at, {found.legal:,} legal, {found.fitting:,} fit")
    busy = os.getloadavg()[0]
    print(
        f"          best of {_REPEATS}: {min(walls):.2f} s on the clock, {min(cores):.2f} s of one core (load {busy:.1f})"
    )
    print(f"          {rate:,.0f} legal plans a second of one core")
    if arguments.llm_analysis:
        done = subprocess.run([arguments.llm_analysis, "-c", _OTHER], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"llm-analysis did not run: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return 2
        other = json.loads(done.stdout.splitlines()[-1])
        if not other["priced"]:
            print("llm-analysis priced no plan", file=sys.stderr)
            return 2
        theirs = other["priced"] / other["cpu_s"]
        refused = other["failed"]
        print(
            f"llm-analysis 0.2.2: {other['priced']} plans priced, {refused} refused, {theirs:,.0f} a second of one core"
        )
        print(f"          {rate / theirs:,.0f} times as many")
    else:
        print("llm-analysis is not measured: give --llm-analysis PYTHON")
    met = found.legal >= LEAST_PLANS and min(cores) <= MOST_SECONDS
    print(f"bar: {LEAST_PLANS:,} plans in {MOST_SECONDS:g} s: {'met' if met else 'MISSED'}")
    return 0 if met or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
