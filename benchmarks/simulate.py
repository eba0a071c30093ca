"""How many requests a minute the simulation serves on one core, beside the same scheduler written on simpy; and two exact limits.

``python benchmarks/simulate.py [--requests N] [--exact N]``. Decode-heavy traffic keeps 64 requests in flight: prompts of 64
tokens, outputs of 256 in the mean. On simpy (``pip install simpy``) an engine without a paged cache is a process with one event a
step; both take step times from the same table, and their makespans are compared. ``--exact`` serves so many requests on one
server whose waits queueing theory knows (M/D/1 and M/M/1).
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections import deque
from collections.abc import Iterator

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from trilemma.ask.simulate import question_of  # noqa: E402
from trilemma.simulation.serving.blocks import BlockPool  # noqa: E402
from trilemma.simulation.serving.deployment import SimulatedPlan, simulated_plan  # noqa: E402
from trilemma.simulation.serving.drawn import ArrivalProcess, LengthDistribution, drawn  # noqa: E402
from trilemma.simulation.serving.event_loop import run  # noqa: E402
from trilemma.simulation.serving.front import Front  # noqa: E402
from trilemma.simulation.serving.gauges import Gauges  # noqa: E402
from trilemma.simulation.serving.ledger import RequestBook  # noqa: E402
from trilemma.simulation.serving.policies.token_budget import TokenBudget  # noqa: E402
from trilemma.simulation.serving.replica import EngineReplica  # noqa: E402
from trilemma.simulation.serving.request_cache import RequestCache  # noqa: E402
from trilemma.simulation.serving.routers import InTurn  # noqa: E402
from trilemma.simulation.serving.simulation import SimulationRules, run_once  # noqa: E402
from trilemma.simulation.serving.traffic import Arrival  # noqa: E402

#: Requests a minute that have to be reached on one core.
BAR, IN_FLIGHT = 300_000, 64


def traffic(requests: int) -> Iterator[Arrival]:
    """More than the engine can take, so that 64 run whenever they are there."""
    return drawn(
        ArrivalProcess.parse("poisson:1000"), LengthDistribution.parse(64, "isl"),
        LengthDistribution.parse("lognormal:256:0.5", "osl"), requests=requests, seed=1,
    )  # fmt: skip


def ours(plan: SimulatedPlan, requests: int) -> tuple[float, float]:
    began = time.process_time()
    done = run_once(plan, traffic(requests), SimulationRules())
    took = time.process_time() - began
    print(
        f"trilemma {requests:>9,} requests {took:7.2f} s of one core: {requests / took * 60:>10,.0f} requests/min,"
        f" {done.events / took:,.0f} events/s, {done.engines[0].steps / took:,.0f} decode steps/s"
    )
    return requests / took * 60, done.book.ended_s


def on_simpy(plan: SimulatedPlan, requests: int) -> float | None:
    """The same engine as a simpy process: it looks at its queue before each step."""
    try:
        import simpy
    except ImportError:
        print("simpy    is not installed (pip install simpy)")
        return None
    clock = simpy.Environment()
    waiting: deque[list[int]] = deque()
    left = requests

    def arriving() -> Iterator[object]:
        for one in traffic(requests):
            yield clock.timeout(max(one.arrival_s - clock.now, 0.0))
            waiting.append([one.isl, one.osl])

    def serving() -> Iterator[object]:
        nonlocal left
        running: list[list[int]] = []
        while left:
            new = [waiting.popleft() for _ in range(min(IN_FLIGHT - len(running), len(waiting)))]
            context = sum(isl for isl, _ in running) / max(len(running), 1)
            if new:
                yield clock.timeout(plan.times.mixed_s(len(running), context, [(isl, 0) for isl, _ in new], len(new)))
            elif running:
                yield clock.timeout(plan.times.decode_s(len(running), context))
            else:
                yield clock.timeout(1e-3)
            for one in running:
                one[0], one[1] = one[0] + 1, one[1] - 1
            for one in new:
                one[0], one[1] = one[0] + 1, one[1] - 1
            ended = sum(one[1] <= 0 for one in (*running, *new))
            running = [one for one in (*running, *new) if one[1] > 0]
            left -= ended

    clock.process(arriving())
    served = clock.process(serving())
    began = time.process_time()
    clock.run(until=served)
    took = time.process_time() - began
    print(f"simpy    {requests:>9,} requests {took:7.2f} s of one core: {requests / took * 60:>10,.0f} requests/min")
    return float(clock.now)


class OneServer:
    """A server that takes a millisecond for each prompt token."""

    def decode_s(self, sequences: int, context: float) -> float:  # noqa: ARG002
        return 0.0

    def run_s(self, sequences: int, context_sum: float, steps: int) -> float:  # noqa: ARG002
        return 0.0

    def mixed_s(self, sequences: int, context: float, chunks: list[tuple[int, int]], ended: int) -> float:  # noqa: ARG002
        return sum(new for new, _ in chunks) * 1e-3


def exact(requests: int) -> None:
    """Mean waits against ``busy / (1 - busy) * service * (1 + variation squared) / 2`` (Pollaczek and Khinchine)."""
    for words, lengths, variation in (("M/D/1", "1000", 0.0), ("M/M/1", "exponential:1000", 1.0)):
        for busy in (0.5, 0.8):
            book = RequestBook()
            engine = EngineReplica(
                TokenBudget(tokens=10**6), OneServer(), RequestCache(BlockPool(10**6), block_size=16),  # type: ignore[arg-type]
                most_running=1, done=book.done, refused=book.refused, gauges=Gauges(),
            )  # fmt: skip
            front = Front(
                InTurn(), handling_s=0.0, each_s=0.0, most_tokens=10**9, most_prompt=10**9, refused=book.refused
            )
            prompts, token = LengthDistribution.parse(lengths, "isl"), LengthDistribution.parse(1, "osl")
            run(
                drawn(ArrivalProcess.parse(f"poisson:{busy}"), prompts, token, requests=requests, seed=3),
                front,
                [engine],
            )
            told = busy / (1 - busy) * (1 + variation**2) / 2
            found = book.ttft.summary()["mean"] - 1.0
            print(
                f"{words} {busy:.0%} busy, {requests:,} requests: mean wait {found:.4f} services,"
                f" theory {told:.4f} ({found / told - 1:+.2%})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--exact", type=int, default=0, metavar="N")
    parser.add_argument("--check", action="store_true", help=f"fail below {BAR:,} requests a minute")
    asked = parser.parse_args()
    plan = simulated_plan(question_of("llama-3.1-8b", "h100-sxm", max_seqs=IN_FLIGHT), typical_tokens=320)
    rate, _ = ours(plan, asked.requests)
    few = max(asked.requests // 100, 100)
    _, ended_s = ours(plan, few)
    there_s = on_simpy(plan, few)
    if there_s is not None:
        print(
            f"makespan of {few:,} requests: {ended_s:.1f} s here, {there_s:.1f} s there ({ended_s / there_s - 1:+.2%})"
        )
    if asked.exact:
        exact(asked.exact)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    if asked.check and rate < BAR:
        raise SystemExit(f"{rate:,.0f} requests a minute are below {BAR:,}")


if __name__ == "__main__":
    main()
