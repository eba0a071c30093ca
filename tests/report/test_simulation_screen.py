"""Screens and charts of a made-up simulation of serving, every figure another: a cell that shows its neighbour's is seen."""

from __future__ import annotations

from dataclasses import replace

from asking import panel, rows
from trilemma.errors import PlanWarning
from trilemma.intervals import Interval
from trilemma.report.charts.simulation import simulation_chart
from trilemma.report.simulation import render_simulation
from trilemma.simulation.serving.allocation import AllocationWaste
from trilemma.simulation.serving.outcome import (
    AdapterUse,
    CacheUse,
    EnergyOfRun,
    Goodput,
    HostCacheUse,
    LoadCurve,
    LoadPoint,
    MeteredCost,
    OtherRun,
    PoolUse,
    Quantiles,
    ScaledEngines,
    ServingSimulation,
    TenantShare,
    UserMetrics,
)


def q(at: float, step: float = 1.0) -> Quantiles:
    return Quantiles(mean=at, p50=at + step, p90=at + 2 * step, p95=at + 3 * step, p99=at + 4 * step)


def i(v: float) -> Interval:
    return Interval(value=v, low=v * 0.8, high=v * 1.3)


metrics = UserMetrics(ttft_ms=q(100.0), queue_ms=q(20.0), tpot_ms=q(7.5, 0.25), itl_ms=q(6.0), e2e_ms=q(9000.0, 500.0))
slow = UserMetrics(ttft_ms=q(150.0), queue_ms=None, tpot_ms=q(6.0, 0.25), itl_ms=q(3.0), e2e_ms=q(4500.0, 250.0))
inputs = {
    "model": "llama-3.1-8b",
    "gpus": 4,
    "gpu": "h100-sxm",
    "engine": "vllm",
    "version": "0.19.0",
    "traffic": "poisson, 8 a second",
    "context": 8192,
    "layout": {"tp": 2, "pp": 1, "dp": 1, "replicas": 2},
}
other = OtherRun(
    inputs={**inputs, "gpus": 2, "layout": {"tp": 2, "pp": 1, "dp": 1, "replicas": 1}, "changed": {"max_seqs": "64"}},
    requests=1000,
    completed=940,
    rejected=0,
    abandoned=60,
    metrics=slow,
    output_tokens_per_s=900.0,
    requests_per_s=3.0,
    preemptions=2,
    goodput=Goodput(share=0.6, requests_per_s=2.0),
    cost=MeteredCost(usd=1.0, usd_per_million_tokens=3.0, usd_per_request=0.002),
    energy=EnergyOfRun(watts=i(900.0), kwh=i(0.3), joules_per_token=i(0.75), joules_per_request=None),
    quicker_share=0.375,
)
found = ServingSimulation(
    inputs=inputs,
    requests=1000,
    completed=980,
    rejected=15,
    abandoned=5,
    seconds_simulated=1234.56,
    metrics=metrics,
    bounds={
        "low": {"ttft_ms": {"p99": 90.0}, "tpot_ms": {"p99": 8.0}},
        "high": {"ttft_ms": {"p99": 20000.0}, "tpot_ms": {"p99": 9.75}},
    },
    output_tokens_per_s=1200.4,
    input_tokens_per_s=5000.0,
    requests_per_s=4.567,
    tokens_per_s_per_gpu=300.1,
    preemptions=1,
    mean_running=12.34,
    engines=2,
    scaling=ScaledEngines(most=2, mean=1.56, changes=((0.0, 1.0), (60.0, 2.0), (90.0, 1.0)), gpu_share=0.8),
    goodput=Goodput(share=0.912, requests_per_s=4.16),
    cache=CacheUse(
        block_hit_rate=0.5, token_hit_rate=0.234, peak_share=0.87, blocks=27000, block_size=16, unfilled_share=0.045
    ),
    host_cache=HostCacheUse(blocks=5400, token_hit_rate=0.111, written_gb=12.3, read_gb=45.6, wait_ms=7.8),
    adapters=AdapterUse(slots=4, rank=16, slot_hit_rate=0.654, loads=21, reads=13, load_s=1.5, passed_over=6),
    allocation=(
        AllocationWaste(way="paged", unfilled_share=0.031, block_size=16),
        AllocationWaste(way="whole_context", unfilled_share=0.92),
    ),
    cost=MeteredCost(usd=2.0, usd_per_million_tokens=1.5, usd_per_request=0.004),
    energy=EnergyOfRun(watts=i(1000.0), kwh=i(0.5), joules_per_token=i(0.5), joules_per_request=None),
    pools=(
        PoolUse(pool="prefill", engines=1, mean_running=3.2, peak_share=0.4, preemptions=0),
        PoolUse(pool="decode", engines=1, mean_running=9.1, peak_share=0.7, preemptions=1),
    ),
    compared=other,
    tenants=(
        TenantShare(tenant="ada", requests=600, output_tokens=3000, ttft_ms=q(50.0)),
        TenantShare(tenant="bob", requests=380, output_tokens=1000, ttft_ms=None),
    ),
    load_curve=LoadCurve(
        saturation_requests_per_s=9.87,
        knee_requests_per_s=6.54,
        points=(
            LoadPoint(
                requests_per_s=4.935, share_of_saturation=0.5, completed_per_s=4.9, metrics=metrics, goodput_share=0.9
            ),
            LoadPoint(
                requests_per_s=11.0,
                share_of_saturation=1.11,
                completed_per_s=9.8,
                metrics=replace(slow, tpot_ms=None),
                goodput_share=0.1,
            ),
        ),
    ),
    cdf_ms={"ttft_ms": ((0.5, 101.0), (0.99, 104.0)), "e2e_ms": ((0.5, 0.0), (1.0, 11000.0))},
    series=((0.0, 1.0, 0.0, 0.1), (5.0, 8.0, 2.0, 0.6)),
    wall_s=0.25,
    events=43210,
    warnings=(PlanWarning(code="x", message="what was assumed"),),
)

SCREEN = """\
llama-3.1-8b on 4 x h100-sxm · vllm 0.19.0 · 2 engines of TP2
poisson, 8 a second
980 of 1,000 requests answered in 1,234.6 s, 15 refused (longer than the context of 8,192 tokens, or than the cache), 5
  given up

                      mean         P50       P90       P95       P99  P99, ends of the error bars
──────────────  ──────────  ──────────  ────────  ────────  ────────  ───────────────────────────
first token       100.0 ms    101.0 ms  102.0 ms  103.0 ms  104.0 ms            90.0 ms – 20.00 s
  of it queued     20.0 ms     21.0 ms   22.0 ms   23.0 ms   24.0 ms
time per token      7.5 ms      7.8 ms    8.0 ms    8.2 ms    8.5 ms              8.0 ms – 9.8 ms
between tokens      6.0 ms      7.0 ms    8.0 ms    9.0 ms   10.0 ms
whole request   9,000.0 ms  9,500.0 ms   10.00 s   10.50 s   11.00 s

throughput 1,200 output tokens/s, 4.57 requests/s, 300 tokens/s per GPU
running    12.3 requests in the mean, 1 preemption
cache      27,000 blocks of 16 tokens, at most 87% held; 23.4% of prompt tokens found; 4.5% of what was held unfilled
host cache 5,400 blocks; 11.1% of prompt tokens came back from there; 12.3 GB written, 45.6 GB read, 7.8 ms until it is
  back
adapters   4 slots of rank 16; 65.4% of requests found theirs in one; 21 loads (13 read first), 1.50 s waited for them;
           passed over 6 times
prefill    3.2 requests in the mean, cache at most 40% held
decode     9.1 requests in the mean, cache at most 70% held
goodput    91.2% of requests within the targets, 4.16 a second
engines    1.6 of 2 in the mean, at most 2; 3 changes
cost       $1.50 per million output tokens; a request $0.00400
energy     1,000 W in the mean (800 – 1,300), 0.5 kWh in all; 0.5 J per output token (0.4 – 0.65)
simulated  43,210 events in 0.25 s

other: llama-3.1-8b on 2 x h100-sxm · vllm 0.19.0 · TP2, with max_seqs 64

the same requests           first       other  change
─────────────────────  ──────────  ──────────  ──────
first token, P50         101.0 ms    151.0 ms    +50%
first token, P99         104.0 ms    154.0 ms    +48%
time per token, P50        7.8 ms      6.2 ms    -19%
time per token, P99        8.5 ms      7.0 ms    -18%
between tokens, P50        7.0 ms      4.0 ms    -43%
between tokens, P99       10.0 ms      7.0 ms    -30%
whole request, P50     9,500.0 ms  4,750.0 ms    -50%
whole request, P99        11.00 s  5,500.0 ms    -50%
output tokens/s             1,200         900    -25%
within the targets, %        91.2          60    -34%
$ per million tokens          1.5           3   +100%
$ per 1,000 requests            4           2    -50%
J per output token            0.5        0.75    +50%
of the requests answered in both, 37.5% took less time in the other run
940 of 1,000 answered there

saturated at 9.87 requests/s; the tail of the first token has doubled beyond 6.54

requests/s  of saturation  P50 first token  P99 first token  P50 per token  P99 per token
──────────  ─────────────  ───────────────  ───────────────  ─────────────  ─────────────
      4.93            50%         101.0 ms         104.0 ms         7.8 ms         8.5 ms
        11           111%         151.0 ms         154.0 ms

tenant  requests  share of tokens  P99 first token
──────  ────────  ───────────────  ───────────────
ada          600            75.0%          54.0 ms
bob          380            25.0%

cache given out  block  unfilled
───────────────  ─────  ────────
paged               16      3.1%
whole context              92.0%

note: what was assumed
"""


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_every_figure_of_a_simulation_stands_where_it_belongs() -> None:
    assert lines(render_simulation(found, explain=True, width=120)) == lines(SCREEN)


def test_what_was_not_asked_for_is_not_shown() -> None:
    bare = replace(
        found,
        compared=None,
        load_curve=None,
        tenants=(),
        allocation=(),
        bounds={},
        host_cache=None,
        adapters=None,
        pools=(),
        scaling=None,
        cost=None,
        energy=None,
        goodput=None,
        rejected=0,
        abandoned=0,
    )
    shown = lines(render_simulation(bare, explain=False, width=200))
    assert shown[2] == "980 of 1,000 requests answered in 1,234.6 s"
    assert shown[4].split() == ["mean", "P50", "P90", "P95", "P99"]
    assert [line.split()[0] for line in shown[-4:]] == ["throughput", "running", "cache", "simulated"]
    nobody = lines(render_simulation(replace(bare, completed=0), explain=False, width=200))
    assert nobody[4].startswith("throughput")


def test_notes_and_ways_of_giving_out_are_told_when_asked() -> None:
    short = render_simulation(found, explain=False, width=200)
    assert "cache given out" not in short
    assert "note:" not in short


def test_the_chart_of_a_simulation_draws_its_figures() -> None:
    spec = simulation_chart(found)
    load, share, held = (panel(spec, title) for title in ("How many requests", "Requests over time", "Cache held"))
    assert rows(load) == [
        {"ms": 101.0, "share": 0.5, "figure": "first token"},
        {"ms": 104.0, "share": 0.99, "figure": "first token"},
        {"ms": 1e-3, "share": 0.5, "figure": "whole request"},
        {"ms": 11000.0, "share": 1.0, "figure": "whole request"},
    ]
    assert rows(share) == [
        {"s": 0.0, "requests": 1.0, "what": "running"},
        {"s": 0.0, "requests": 0.0, "what": "waiting"},
        {"s": 5.0, "requests": 8.0, "what": "running"},
        {"s": 5.0, "requests": 2.0, "what": "waiting"},
    ]
    assert rows(held) == [{"s": 0.0, "share": 0.1}, {"s": 5.0, "share": 0.6}]
    assert spec["title"]["text"] == "llama-3.1-8b on 4 x h100-sxm · vllm 0.19.0"
    assert spec["title"]["subtitle"] == [
        "poisson, 8 a second",
        "980 of 1,000 requests, 1,200 output tokens a second",
    ]
    curve = next(one for one in spec["vconcat"] if "layer" in one)
    assert curve["layer"][0]["data"]["values"] == [
        {"rate": 4.935, "ms": 101.0, "figure": "first token, P50"},
        {"rate": 4.935, "ms": 104.0, "figure": "first token, P99"},
        {"rate": 4.935, "ms": 7.75, "figure": "time per token, P50"},
        {"rate": 4.935, "ms": 8.5, "figure": "time per token, P99"},
        {"rate": 11.0, "ms": 151.0, "figure": "first token, P50"},
        {"rate": 11.0, "ms": 154.0, "figure": "first token, P99"},
    ]
    assert curve["layer"][1]["data"]["values"] == [
        {"rate": 6.54, "label": "knee 6.54/s"},
        {"rate": 9.87, "label": "saturated 9.87/s"},
    ]
    assert curve["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 11.0 * 1.15]
    assert [one["mark"]["align"] for one in curve["layer"][2:]] == ["right", "left"]
    assert len(simulation_chart(replace(found, load_curve=None, series=()))["vconcat"]) == 1


def test_engines_are_counted_where_there_are_several() -> None:
    def where(**layout: int) -> str:
        given = {**inputs, "layout": {"tp": 1, "pp": 1, "dp": 1, "replicas": 1, **layout}}
        return render_simulation(replace(found, inputs=given), explain=False, width=200).splitlines()[0]

    start = "llama-3.1-8b on 4 x h100-sxm · vllm 0.19.0"
    assert where() == start
    assert where(replicas=4) == f"{start} · 4 engines"
    assert where(tp=2, pp=2) == f"{start} · TP2 PP2"
    assert where(tp=2, replicas=2) == f"{start} · 2 engines of TP2"
    assert where(dp=8) == f"{start} · DP8"  # one engine of eight ranks, each with a queue of its own
    assert where(tp=2, dp=2, replicas=2) == f"{start} · 2 engines of TP2 DP2"
    pools = {
        "prefill": {"tp": 2, "pp": 1, "dp": 1, "replicas": 1},
        "decode": {"tp": 1, "pp": 1, "dp": 1, "replicas": 2},
    }
    shown = render_simulation(replace(found, inputs={**inputs, "pools": pools}), explain=False, width=200)
    assert shown.splitlines()[0] == f"{start} · TP2 prefill + 2 engines decode"


def test_a_tenant_of_few_tokens_and_a_narrow_window() -> None:
    few = tuple(replace(one, output_tokens=0) for one in found.tenants)
    assert "  0.0%" in render_simulation(replace(found, tenants=few), explain=False, width=200)
    narrow = render_simulation(found, explain=False, width=70)
    assert max(map(len, narrow.splitlines())) <= 70
