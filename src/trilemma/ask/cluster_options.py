"""Every option of a simulation of a cluster."""

from __future__ import annotations

from trilemma.ask.options import Option
from trilemma.ask.reading import as_given, number, text, truth, whole_number, whole_or_none

CLUSTER = "simulate_cluster"
_OF = (CLUSTER,)
CLUSTER_OPTIONS: tuple[Option, ...] = (
    Option(name="nodes", of=_OF, read=as_given, metavar="FILE|NxG", group="cluster",
           help="nodes: a table (name, gpus, model, cpu_milli, memory_mib, sockets, nvlink, leaf, rack, block), a HiveD"
           " configuration, scontrol show nodes, kubectl get nodes -o json, a snapshot of KAI,"
           " or N nodes of G GPUs as 64x8, 64x8:8 with 8 nodes a rack"),
    Option(name="topology", of=_OF, read=as_given, metavar="FILE", group="cluster",
           help="where nodes stand: topology.conf or topology.yaml of Slurm, HyperNodes of Volcano"),
    Option(name="queues", of=_OF, read=as_given, metavar="FILE", group="cluster",
           help="queues: a table (queue, parent, nominal, borrowing, lending, weight, reclaim, within), or objects of Kueue"
           " or KAI"),
    Option(name="failures", of=_OF, read=text, metavar="MTBF:REPAIR", group="cluster",
           help="each node fails after MTBF hours in the mean and is back REPAIR hours later"),
    Option(name="slowdown", of=_OF, read=text, metavar="LEVEL=X,...", group="cluster",
           help="work takes X times as long where a job spans more than a node: node, nvlink, leaf, rack, block or cluster"),
    Option(name="gpu", of=_OF, read=text, metavar="G", group="cluster",
           help="the cards of nodes that do not name theirs, such as h100-sxm: for the speed of trainings and slices"),
    Option(name="network", of=_OF, read=text, metavar="RATE", group="cluster",
           help="network of one node: 8x400Gb/s, 50GB/s (default: the card's usual)"),
    Option(name="oversubscription", of=_OF, read=text, metavar="R|LEVEL=R,...", group="cluster",
           help="how many times narrower the network is that a job crosses, by the level that it spans"),
    Option(name="models", of=_OF, read=text, metavar="DIR", group="jobs",
           help="look hub ids of trainings up as DIR/<org>--<name>/config.json first"),
    Option(name="trainings", of=_OF, read=as_given, metavar="FILE", group="jobs",
           help="what jobs train, YAML by name: options of trilemma train, a command, or a measured pace by level: their speed"
           " follows from where they stand"),
    Option(name="jobs", of=_OF, read=as_given, metavar="FILE|KIND:N", required_of=_OF, group="jobs",
           help="jobs: a table (Philly, Helios, Acme, openb, sacct -P, or job, submit_s, duration_s, gpus, queue, priority, ...),"
           " squeue --json, sacct --json, scontrol show jobs, Workloads of Kueue, a snapshot of KAI,"
           " N jobs drawn like philly or kalos, or a scenario of Kueue's performance tests"),
    Option(name="telemetry", of=_OF, read=as_given, metavar="FILE", group="jobs",
           help="DCGM's counters of jobs or nodes (Prometheus text, an answer of query_range, or a table): how well"
           " jobs use their cards"),
    Option(name="load", of=_OF, read=number, metavar="X", group="jobs", default=0.8,
           help="drawn jobs ask for X of the cluster over their time (default 0.8)"),
    Option(name="demand", of=_OF, read=number, metavar="X", group="jobs",
           help="fill the cluster: jobs in random order, left out or repeated until they ask for X of it, and stay"),
    Option(name="scale_arrivals", of=_OF, read=number, metavar="X", group="jobs", default=1.0,
           help="jobs arrive X times as fast"),
    Option(name="count", of=_OF, read=whole_number, metavar="N", group="jobs", help="the first N jobs alone"),
    Option(name="until", of=_OF, read=number, metavar="HOURS", group="jobs", help="stop after so many hours"),
    Option(name="checkpoint", of=_OF, read=number, metavar="S", group="jobs",
           help="jobs that do not say save every S seconds (default: never, all is lost)"),
    Option(name="restart", of=_OF, read=number, metavar="S", group="jobs", default=0.0,
           help="jobs that do not say take S seconds to start again (default 0)"),
    Option(name="split", of=_OF, read=truth, group="jobs", default=False,
           help="a job that no node holds may be spread card by card"),
    Option(name="seed", of=_OF, read=whole_or_none, metavar="S", group="jobs", default=0, help="of what is drawn (default 0)"),
    Option(name="policy", of=_OF, read=text, metavar="NAME", group="scheduling", default="backfill",
           help="fifo, backfill (default), first-fit, random, best-fit, packing, fgd, kueue, kai, hived, or observed: as jobs"
           " were seen to run"),
    Option(name="control_plane", of=_OF, read=text, metavar="WRITES:BURST", group="scheduling",
           help="kueue as fast as its client: WRITES a second, BURST at once (its default is 50:100)"),
    Option(name="placement", of=_OF, read=text, metavar="RULE", group="scheduling",
           help="where jobs go, in place of the policy's rule: tightest, least-free, random, best-fit, packing or fgd"),
    Option(name="preempt", of=_OF, read=truth, group="scheduling", default=False,
           help="running jobs of lower priority leave where that lets a job start"),
    Option(name="move", of=_OF, read=number, metavar="S", group="scheduling",
           help="running jobs are moved together where that makes a place for one that waits, and stand still for S seconds"
           " beside their restart"),
    Option(name="elastic", of=_OF, read=truth, group="scheduling", default=False,
           help="jobs with min_pods shrink for others and grow again while they run"),
    Option(name="compare", of=_OF, read=text, metavar="WHAT,...", group="scheduling",
           help="beside it: other policies by name, more nodes as +N"),
    Option(name="processes", of=_OF, read=whole_number, metavar="N", group="scheduling", default=2,
           help="processes that compared runs share (default 2)"),
    Option(name="wait", of=_OF, read=text, metavar="GPUS[:QUEUE[:HOURS]]", group="scheduling",
           help="how long a job of so many GPUs (and HOURS as its limit) would wait if it came when the last one does, with 80 %%"
           " bounds; where jobs still run or wait (squeue), from that moment on"),
    Option(name="by", of=_OF, read=number, metavar="HOURS", group="scheduling",
           help="how likely it starts within HOURS, of jobs that still run or wait"),
    Option(name="history", of=_OF, read=as_given, metavar="FILE", group="jobs",
           help="jobs that are over, such as a month of sacct: what jobs take of their limits"),
    Option(name="export", of=_OF, read=as_given, metavar="DIR", group="cluster",
           help="write nodes and queues for schedulers: Slurm's topology and reservations, Kueue, KAI, Volcano"),
    Option(name="per_job", of=_OF, read=as_given, metavar="FILE", group="scheduling",
           help="write a line a job: JSON lines, or CSV by the file's name"),
)  # fmt: skip
