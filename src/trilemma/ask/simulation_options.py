"""Every option of a simulation of serving: those of one plan, as `trilemma.ask.options` declares them, and its traffic."""

from __future__ import annotations

from dataclasses import replace

from trilemma.ask.options import FIT, Option, options_of
from trilemma.ask.reading import as_given, milliseconds, number, text, truth, whole_number, whole_or_none, word

SIMULATE = "simulate"
#: Options of a plan that a simulation takes as `fit` does.
_OF_A_PLAN = (
    "models", "nodes", "gpus_per_node", "network", "oversubscription", "host", "tp", "pp", "dp", "dcp", "ep", "replicas",
    "context", "ttft", "tpot", "engine", "memory_fraction", "max_seqs", "max_batched_tokens", "kv_dtype", "precision", "draft",
    "eager", "free_gib", "profile", "prefill", "decode",
)  # fmt: skip
_OF = (SIMULATE,)
SIMULATION: tuple[Option, ...] = (
    *(replace(options_of(FIT)[name], of=_OF) for name in _OF_A_PLAN),
    Option(name="trace", of=_OF, read=as_given, metavar="FILE", group="traffic",
           help="requests with their times: CSV or JSON lines, plain or gzip (arrival, input, output, or known names)"),
    Option(name="arrivals", of=_OF, read=text, metavar="PROCESS", group="traffic",
           help="poisson:R, gamma:R:CV, constant:R (R requests a second), burst (all at once), burst:N:EVERY, or users:N, each of"
           " whom sends the next request when one is answered"),
    Option(name="turns", of=_OF, read=as_given, metavar="N", group="traffic",
           help="requests of each conversation, a number or a distribution: each prompt is all that was said and new tokens"),
    Option(name="think", of=_OF, read=as_given, metavar="S", group="traffic",
           help="seconds from an answer to the next request of its user or conversation (also of a tool)"),
    Option(name="sessions_in_order", of=_OF, read=truth, group="traffic", default=False,
           help="a request of a trace waits until the one before it in its session is answered"),
    Option(name="isl", of=_OF, read=as_given, metavar="LENGTH", group="traffic",
           help="prompt tokens: a number, uniform:LOW:HIGH, normal:MEAN:CV, lognormal:MEAN:CV or exponential:MEAN"),
    Option(name="osl", of=_OF, read=as_given, metavar="LENGTH", group="traffic", help="output tokens, likewise"),
    Option(name="lengths", of=_OF, read=as_given, metavar="FILE", group="traffic",
           help="a trace whose lengths are drawn, in pairs, for the arrivals"),
    Option(name="requests", of=_OF, read=whole_number, metavar="N", group="traffic",
           help="requests at most (default: all of a trace, 1,000 drawn)"),
    Option(name="seed", of=_OF, read=whole_or_none, metavar="S", group="traffic", default=0,
           help="of what is drawn (default 0): the same seed, the same traffic"),
    Option(name="scale_rate", of=_OF, read=number, metavar="X", group="traffic", default=1.0,
           help="a trace so many times as fast"),
    Option(name="begin", of=_OF, read=number, metavar="S", group="traffic", default=0.0,
           help="a trace from so many seconds on"),
    Option(name="span", of=_OF, read=number, metavar="S", group="traffic", help="a trace for so many seconds"),
    Option(name="adapters", of=_OF, read=text, metavar="N[:SKEW]", group="traffic",
           help="requests that name no adapter are for one of N, the k-th asked for as often as k^-SKEW (default 0: all alike)"),
    Option(name="timeout", of=_OF, read=number, metavar="S", group="traffic",
           help="clients give up after so many seconds (default: never)"),
    Option(name="policy", of=_OF, read=word, metavar="NAME", group="scheduling",
           help="schedule as another engine does: token-budget, prefill-first, whole-requests, max-utilization, slots"),
    Option(name="router", of=_OF, read=word, metavar="NAME", group="scheduling", default="round-robin",
           help="before several engines: round-robin, least-loaded or prefix-aware"),
    Option(name="autoscale", of=_OF, read=text, metavar="FEWEST:BUSY:START:COOL", group="scheduling",
           help="engines from FEWEST to all: one more above BUSY requests each, ready after START s (or auto: as fit says), fewer"
                " after COOL s"),
    Option(name="fail", of=_OF, read=text, metavar="ENGINE:FROM:DOWN", group="scheduling",
           help="an engine that is lost at FROM s for DOWN s; its requests start anew elsewhere"),
    Option(name="kv_offload", of=_OF, read=number, metavar="GIB", group="scheduling",
           help="memory of the host for the caches of one engine, all its ranks: what leaves the card comes back from there"),
    Option(name="async_scheduling", of=_OF, group="scheduling", maybe=True,
           help="the scheduler composes a step while the one before it runs (default: as the engine's version does)"),
    Option(name="max_loras", of=_OF, read=whole_number, metavar="N", group="scheduling",
           help="adapters in one batch (default: the engine's)"),
    Option(name="lora_rank", of=_OF, read=whole_number, metavar="R", group="scheduling",
           help="rank of the adapters' slots (default: the engine's, 16)"),
    Option(name="host_loras", of=_OF, read=whole_number, metavar="N", group="scheduling",
           help="adapters that the host's memory keeps (default: as the engine does)"),
    Option(name="lora_read", of=_OF, read=milliseconds, metavar="MS", group="scheduling", default=0.0,
           help="milliseconds in which an adapter that the host does not keep is read (default 0)"),
    Option(name="cache_tokens", of=_OF, read=whole_number, metavar="TOKENS", group="scheduling",
           help="tokens of the KV cache as the engine prints them, in place of those predicted"),
    Option(name="measured", of=_OF, read=as_given, metavar="FILE", group="scheduling",
           help="requests that this deployment answered (arrival, input, output, first_token_s, finish_s): steps as they say"),
    Option(name="bounds", of=_OF, group="scheduling", maybe=True,
           help="simulate the ends of the error bars too (default: up to 20,000 requests)"),
    Option(name="load_curve", of=_OF, read=truth, group="traffic", default=False,
           help="the same requests at nine rates up to saturation: latency against load, and its knee"),
    Option(name="compare", of=_OF, read=as_given, metavar="NAME=VALUE…", group="scheduling",
           help="the same requests under other options beside these: engine=sglang, or in quotes 'gpu=h200-sxm:2 tp=2'"),
    Option(name="per_request", of=_OF, read=as_given, metavar="FILE", group="traffic",
           help="write a line a request: JSON lines, or CSV by the file's name"),
)  # fmt: skip
