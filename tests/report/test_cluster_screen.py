"""Screens and charts of made-up simulations, every figure another: a cell that shows its neighbour's figure is seen."""

from __future__ import annotations

from dataclasses import replace

from asking import panel, rows
from trilemma.errors import PlanWarning
from trilemma.report.charts.cluster import cluster_chart
from trilemma.report.cluster import render_cluster
from trilemma.simulation.cluster.outcome import (
    ClusterHours,
    ClusterSimulation,
    EndUsage,
    IdleJob,
    JobsEfficiency,
    PolicyOutcome,
    QueueUsage,
    SpaceTime,
    StartForecast,
    WaitEstimate,
)

waits = {
    "all": {"jobs": 1500, "mean": 4000.0, "p50": 90.0, "p90": 400000.0},
    "1": {"jobs": 900, "mean": 8.25, "p50": 3.0, "p90": 119.0},
    "<1": {"jobs": 20, "mean": 60.0, "p50": 12.0, "p90": 120.0},
    "8": {"jobs": 500, "mean": 7200.0, "p50": 7199.0, "p90": 172800.0},
    "research": {"jobs": 80, "mean": 0.0, "p50": 0.0, "p90": 0.0},
}
hours = ClusterHours(
    capacity=2000.0,
    useful=1250.0,
    idle=300.0,
    fragmented=150.0,
    lost=300.0,
    of_idle={"nobody_waits": 180.0, "too_little_free": 120.0},
    of_lost={"preemption": 80.0, "failure": 70.0, "starting": 60.0, "moving": 50.0, "down": 40.0},
)
first = PolicyOutcome(
    name="backfill",
    nodes=32,
    gpus=256.0,
    completed=1480,
    unstarted=20,
    preemptions=7,
    moves=3,
    seconds_simulated=345600.0,
    allocated_share=0.725,
    useful_share=0.625,
    mfu_share=0.31,
    worst_loss_s=1.0,
    gpu_hours=hours,
    waits_s=waits,
    events=10,
    wall_s=0.5,
)
other = replace(
    first,
    name="fifo",
    nodes=36,
    allocated_share=0.66,
    preemptions=9,
    waits_s={"all": {"jobs": 1500, "mean": 10800.0, "p90": 86400.0}},
    gpu_hours=replace(hours, capacity=1000.0, fragmented=45.0, lost=123.0),
)
found = ClusterSimulation(
    inputs={"jobs": "philly:1500", "gpus": 256},
    jobs=1500,
    outcome=first,
    compared=(other,),
    wait=WaitEstimate(
        job="8 GPUs",
        wait_s=5400.0,
        low_s=30.0,
        high_s=200000.0,
        held_out_coverage=0.81,
        judged=740,
        waiting_coverage=0.77,
        waiting=310,
        like=1234,
        alike="load",
    ),
    forecast=(
        StartForecast(
            name="backfill",
            nodes=32,
            gpus=16.0,
            queue="prod",
            wait_s=3600.0,
            low_s=7300.0,
            high_s=None,
            by_s=14400.0,
            chance=0.45,
            draws=40,
        ),
        StartForecast(
            name="fifo",
            nodes=36,
            gpus=16.0,
            queue="prod",
            wait_s=None,
            low_s=100.0,
            high_s=90000.0,
            by_s=14400.0,
            chance=0.2,
            draws=40,
        ),
    ),
    efficiency=(
        JobsEfficiency(
            training="llama-3.1-8b seq 4096",
            gpus=16.0,
            jobs=40,
            gpu_hours=812.0,
            mfu=0.381,
            nearest_mfu=0.402,
            place_gain_gpu_hours=41.0,
            best_mfu=0.45,
            best_layout="TP2 DP8",
            plan_gain_gpu_hours=93.0,
        ),
        JobsEfficiency(
            training="qwen3-32b", gpus=0.5, jobs=3, gpu_hours=7.0, mfu=None, nearest_mfu=None, place_gain_gpu_hours=0.0
        ),
    ),
    queues=(
        QueueUsage(queue="prod", jobs=1000, gpu_hours=900.0, share=0.45, wait_p50_s=240.0, wait_p90_s=9000.0, mfu=0.33),
        QueueUsage(queue="lab", jobs=500, gpu_hours=350.0, share=0.175, wait_p50_s=None, wait_p90_s=None, mfu=None),
    ),
    ends=(
        EndUsage(state="COMPLETED", jobs=1200, gpu_hours=1100.0, share=0.88),
        EndUsage(state="FAILED", jobs=280, gpu_hours=150.0, share=0.12),
    ),
    idle_jobs=(
        IdleJob(
            job="job-77",
            user="ada",
            queue="lab",
            gpus=8.0,
            gpu_hours=64.0,
            mfu=0.05,
            usual_mfu=0.35,
            gain_gpu_hours=55.0,
        ),
        IdleJob(
            job="job-9", user="", queue="prod", gpus=1.0, gpu_hours=6.0, mfu=0.1, usual_mfu=0.2, gain_gpu_hours=3.0
        ),
    ),
    warnings=(PlanWarning(code="x", message="what was assumed"),),
    exported=("out/kai.yaml",),
)

SCREEN = """\
1,500 jobs of philly:1500 on 32 nodes, 256 GPUs · backfill
1,480 done, 20 never started in 4.0 d; 7 preemptions, 3 moves
allocated 72.5% of capacity, useful 62.5%, weighed by use 31.0%

wait of    jobs      mean        P50      P90
────────  ─────  ────────  ─────────  ───────
all jobs  1,500  66.7 min       90 s    4.6 d
1 GPU       900    8.25 s        3 s    119 s
<1 GPU       20      60 s       12 s  2.0 min
8 GPUs      500     2.0 h  120.0 min    2.0 d
research     80       0 s        0 s      0 s

GPU-hours                           2,000.0  100.0%
──────────────────────────────────  ───────  ──────
useful                              1,250.0   62.5%
fragmented: enough free, no place     150.0    7.5%
idle: nobody waits                    180.0    9.0%
idle: less free than jobs wait for    120.0    6.0%
lost to preemptions                    80.0    4.0%
lost to failures                       70.0    3.5%
held, not begun                        60.0    3.0%
spent on moving and resizing           50.0    2.5%
nodes down                             40.0    2.0%

queue   jobs  GPU-hours  of capacity  wait, P50  wait, P90    use
─────  ─────  ─────────  ───────────  ─────────  ─────────  ─────
prod   1,000        900        45.0%    4.0 min      2.5 h  33.0%
lab      500        350        17.5%

last seen   jobs  GPU-hours  of all
─────────  ─────  ─────────  ──────
completed  1,200      1,100   88.0%
failed       280        150   12.0%

uses its cards little  of    GPUs  GPU-hours    use  3 of 4 alike  hours to gain
─────────────────────  ────  ────  ─────────  ─────  ────────────  ─────────────
job-77                 ada      8         64   5.0%         35.0%             55
job-9                  prod     1          6  10.0%         20.0%              3

training               GPUs  jobs  GPU-hours    MFU  MFU nearest  gained there  gained by a better plan
─────────────────────  ────  ────  ─────────  ─────  ───────────  ────────────  ───────────────────────
llama-3.1-8b seq 4096    16    40        812  38.1%        40.2%            41  93 by TP2 DP8
qwen3-32b               0.5     3          7

a job of 8 GPUs now: starts in 90.0 min, 80 % of such jobs within 30 s to 2.3 d, told by 1,234 of any size
(of 740 jobs left out 81% fell into such bounds, 77% of the 310 that had to wait)

a job of 16 GPUs in prod that comes now (40 runs from who runs and who waits)

policy    nodes    starts in  80 % from           to  within 4.0 h
────────  ─────  ───────────  ─────────  ───────────  ────────────
backfill     32     60.0 min      2.0 h  beyond 30 d           45%
fifo         36  beyond 30 d      100 s       25.0 h           20%

policy    nodes  allocated  wait, mean  wait, P90  fragmented   lost  preempted
────────  ─────  ─────────  ──────────  ─────────  ──────────  ─────  ─────────
backfill     32      72.5%    66.7 min      4.6 d        7.5%  15.0%          7
fifo         36      66.0%       3.0 h     24.0 h        4.5%  12.3%          9

exported: out/kai.yaml

note: what was assumed
"""
DEMAND = """\
jobs ask for  backfill    fifo
────────────  ────────  ──────
        50 %    48.00%  47.00%
       100 %    90.12%
"""


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_every_figure_of_a_cluster_stands_where_it_belongs() -> None:
    assert lines(render_cluster(found, explain=False, width=100)) == lines(SCREEN)


def test_shares_allocated_as_jobs_ask_for_more() -> None:
    here = replace(
        found,
        outcome=replace(first, allocated_at_demand={"40": 0.3, "50": 0.48, "100": 0.9012}),
        compared=(replace(other, allocated_at_demand={"50": 0.47}),),
    )
    assert lines(render_cluster(here, explain=False, width=100))[4:] == lines(DEMAND)
    low = replace(here, outcome=replace(first, allocated_at_demand={"40": 0.3}), compared=())
    assert lines(render_cluster(low, explain=False, width=100))[-1].split() == ["40", "%", "30.00%"]


def test_one_job_on_cpus_and_nothing_else() -> None:
    done = replace(
        first,
        nodes=1,
        gpus=64.0,
        unstarted=0,
        preemptions=0,
        moves=0,
        mfu_share=None,
        completed=1,
        seconds_simulated=5.0,
    )
    shown = lines(
        render_cluster(
            ClusterSimulation(inputs={"jobs": "jobs.csv", "gpus": 0}, jobs=1, outcome=done), explain=True, width=100
        )
    )
    assert shown[:3] == [
        "1 job of jobs.csv on 1 node, 64 CPUs · backfill",
        "1 done in 5 s",
        "allocated 72.5% of capacity, useful 62.5%",
    ]
    assert "CPU-hours                           2,000.0  100.0%" in shown
    assert shown[-1].split() == ["nodes", "down", "40.0", "2.0%"]


def test_the_first_groups_are_shown_and_how_many_more_there_are() -> None:
    many = {str(at): {"jobs": at, "mean": 1.0, "p50": 1.0, "p90": 1.0} for at in range(1, 18)}
    jobs = tuple(replace(found.efficiency[0], training=f"t{at}") for at in range(10))
    here = replace(found, outcome=replace(first, waits_s=many), efficiency=jobs)
    short, full = (render_cluster(here, explain=explain, width=100) for explain in (False, True))
    assert "14 GPUs" in short
    assert "15 GPUs" not in short
    assert "… 3 more groups: --explain" in short
    assert "t7" in short
    assert "t8" not in short
    assert "… 2 more groups: --explain" in short
    assert "17 GPUs" in full
    assert "t9" in full
    assert "--explain" not in full


def test_a_wait_told_by_alike_jobs_says_no_more() -> None:
    assert found.wait is not None
    alike = replace(found, wait=replace(found.wait, alike="size", waiting_coverage=None))
    shown = render_cluster(alike, explain=False, width=100)
    assert "within 30 s to 2.3 d\n(of 740 jobs left out 81% fell into such bounds)\n" in shown


def test_the_chart_of_a_cluster_draws_its_figures() -> None:
    picture = SpaceTime(
        groups=("rack-a", "rack-b"),
        rows=(("rack-a", 0.0, 2.0, 0.9), ("rack-b", 2.0, 5.0, 0.3)),
        waiting=((0.0, 2.0, 24.0), (2.0, 5.0, 8.0)),
        queues=(("prod", 0.0, 2.0, 100.0), ("lab", 2.0, 5.0, 40.0)),
    )
    spec = cluster_chart(replace(found, picture=picture))
    assert spec is not None
    assert rows(panel(spec, "Where the hours")) == [
        {"state": "useful", "hours": 1250.0, "share": 0.625, "at": 0},
        {"state": "lost", "hours": 300.0, "share": 0.15, "at": 1},
        {"state": "fragmented", "hours": 150.0, "share": 0.075, "at": 2},
        {"state": "idle: too little free", "hours": 120.0, "share": 0.06, "at": 3},
        {"state": "idle: nobody waits", "hours": 180.0, "share": 0.09, "at": 4},
    ]
    space = panel(spec, "Cards in use")
    assert rows(space) == [
        {"group": "rack-a", "from": 0.0, "to": 2.0, "share": 0.9},
        {"group": "rack-b", "from": 2.0, "to": 5.0, "share": 0.3},
    ]
    assert space["encoding"]["x"]["scale"]["domain"] == [0, 5.0]
    assert (space["encoding"]["x"]["field"], space["encoding"]["x2"]["field"], space["encoding"]["y"]["sort"]) == (
        "from",
        "to",
        ["rack-a", "rack-b"],
    )
    assert rows(panel(spec, "GPUs that queues")) == [
        {"queue": "prod", "from": 0.0, "gpus": 100.0, "at": 0},
        {"queue": "lab", "from": 2.0, "gpus": 40.0, "at": 1},
    ]
    assert rows(panel(spec, "GPUs that jobs wait")) == [{"from": 0.0, "gpus": 24.0}, {"from": 2.0, "gpus": 8.0}]
    assert rows(panel(spec, "How long jobs"))[3] == {"group": "8 GPUs", "p50": 7199.0 / 3600, "p90": 48.0, "jobs": 500}
    assert spec["title"]["text"] == "1,500 jobs on 32 nodes, 256 GPUs · backfill"
    assert spec["title"]["subtitle"] == ["allocated 72.5% of capacity, fragmented 7.5%, lost 15.0%"]
    assert cluster_chart(found) is None


def test_queues_stand_apart_where_there_are_several_and_tell_use_where_they_do() -> None:
    plain = tuple(replace(one, mfu=None) for one in found.queues)
    shown = lines(render_cluster(replace(found, queues=plain), explain=False, width=100))
    at = next(at for at, line in enumerate(shown) if line.startswith("queue"))
    assert shown[at].split() == ["queue", "jobs", "GPU-hours", "of", "capacity", "wait,", "P50", "wait,", "P90"]
    assert shown[at + 2].split() == ["prod", "1,000", "900", "45.0%", "4.0", "min", "2.5", "h"]
    one = render_cluster(replace(found, queues=found.queues[:1]), explain=False, width=100)
    assert "wait, P50" not in one
    assert "last seen" in one
    assert "last seen" not in render_cluster(replace(found, queues=found.queues[:1], ends=()), explain=False, width=100)
    several = replace(found, queues=(*found.queues, *(replace(found.queues[0], queue=f"q{at}") for at in range(9))))
    short, full = (render_cluster(several, explain=explain, width=100) for explain in (False, True))
    assert "q5" in short
    assert "q6" not in short
    assert "q8" in full


def test_panels_grow_with_what_they_draw() -> None:
    def heights(groups: int, gangs: int) -> tuple[int, int]:
        names = tuple(f"g{at}" for at in range(groups))
        drawn = SpaceTime(groups=names, rows=tuple((one, 0.0, 1.0, 0.5) for one in names), waiting=((0.0, 1.0, 8.0),))
        gangs_of = {str(at + 1): {"jobs": 1, "mean": 1.0, "p50": 1.0, "p90": 1.0} for at in range(gangs)}
        spec = cluster_chart(replace(found, outcome=replace(first, waits_s=gangs_of), picture=drawn))
        return panel(spec, "Cards in use")["height"], panel(spec, "How long jobs")["height"]

    assert [heights(2, 2), heights(8, 3), heights(9, 4), heights(20, 30)] == [(90, 34), (90, 51), (99, 68), (220, 272)]
