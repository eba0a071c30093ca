"""A serving engine that refuses to start, with the sum that failed, and a cache that is too small for its load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trilemma.diagnosis.findings import Case, Event, Evidence, Finding, Part
from trilemma.diagnosis.readers.engine_start import KIND
from trilemma.diagnosis.readers.out_of_memory import KIND as ALLOCATION
from trilemma.diagnosis.rules import Rule
from trilemma.quantities import GIB

#: Lines of the sum that leaves the cache, as logs name them: budget less these.
_TAKEN = (
    ("weights_bytes", "weights"), ("non_torch_bytes", "outside PyTorch"), ("activation_bytes", "peak activation"),
    ("cuda_graph_bytes", "CUDA graphs"),
)  # fmt: skip
#: An estimate of graphs above a tenth of the card, and above what any card measured, is not believed.
_GRAPHS_SHARE, _GRAPHS_BYTES = 0.10, 12 * GIB
_WORDS = {
    "free_memory": "less memory is free than its share of the card asks for",
    "no_kv_memory": "nothing is left for the cache",
    "context": "the cache does not hold one request of the longest context",
    "mamba_blocks": "the cache of states does not hold as many sequences as are allowed",
    "out_of_memory": "an allocation failed",
    "configuration": "its options contradict each other or the model",
}


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        for event in part.events:
            if event.name == "refusal":
                told = event.values["refusal"] == "out_of_memory" and any(
                    one == file for one, _ in case.parts(ALLOCATION)
                )
                if not told:  # else the allocation's own finding says more
                    yield _refused(file, part, event)
            elif event.name == "preemption":
                yield _preempted(file, part, event)
            elif event.name == "cuda_graph_estimate_bytes":
                yield from _implausible(file, part, event)


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _sum(facts: Mapping[str, float]) -> str:
    """ "budget 14.20 GiB - weights 7.51 GiB - … = cache 3.76 GiB", of the lines that the log states."""
    if "budget_bytes" not in facts:
        return ""
    taken = [(words, facts[name]) for name, words in _TAKEN if name in facts]
    if not taken:
        return ""
    cache = facts.get("kv_cache_bytes", facts["budget_bytes"] - sum(size for _, size in taken))
    lines = "".join(f" - {words} {_gib(size)}" for words, size in taken)
    return f"; budget {_gib(facts['budget_bytes'])}{lines} = cache {_gib(cache)}"


def _refused(file: str, part: Part, event: Event) -> Finding:
    facts, refusal = part.facts, event.values["refusal"]
    expected, observed, fix, effect = _sides(facts, refusal)
    return Finding(
        id=f"start-up.{refusal.replace('_', '-')}",
        role="root",
        severity="error",
        claim=f"{facts['engine']} does not start: {_WORDS.get(refusal, refusal)}{_sum(facts)}",
        evidence=(Evidence(file=file, line=event.line, value=event.values["text"]),),
        expected=expected,
        observed=observed,
        confidence="established",
        fix=fix,
        predicted_effect=effect,
    )


def _sides(facts: Mapping[str, float], refusal: str) -> tuple[str | None, str | None, str, str | None]:
    """What was needed, what there was, what to change, and what that gives."""
    if refusal == "context" and {"context_tokens", "kv_cache_tokens"} <= facts.keys():
        most = int(facts["kv_cache_tokens"])
        needed = int(facts["context_tokens"])
        return (
            f"cache for {needed:,} tokens",
            f"{most:,} tokens",
            f"a context of at most {most:,} tokens, FP8 cache, or {needed / max(most, 1):.2f} times the memory for the cache",
            f"one request of {most:,} tokens fits",
        )
    if refusal == "context" and "kv_needed_bytes" in facts:
        most = int(facts.get("max_context_tokens", 0))
        return (
            f"{_gib(facts['kv_needed_bytes'])} of cache",
            _gib(facts["kv_cache_bytes"]) if "kv_cache_bytes" in facts else None,
            f"a context of at most {most:,} tokens, FP8 cache, or more GPUs"
            if most
            else "a shorter context or FP8 cache",
            f"one request of {most:,} tokens fits" if most else None,
        )
    if refusal == "free_memory" and {"free_bytes", "budget_bytes"} <= facts.keys():
        short = facts["budget_bytes"] - facts["free_bytes"]
        share = facts["free_bytes"] / facts["capacity_bytes"] if facts.get("capacity_bytes") else None
        lower = f", or a memory share of at most {int(share * 100) / 100:.2f}" if share else ""
        return (
            f"{_gib(facts['budget_bytes'])} free",
            f"{_gib(facts['free_bytes'])} free",
            f"end what else runs on this GPU{lower}",
            f"{_gib(short)} are missing",
        )
    return None, None, "trilemma check --log FILE -- COMMAND names changes with which it starts", None


def _implausible(file: str, part: Part, event: Event) -> Iterator[Finding]:
    """Graphs measure 0.46 to 6.3 GiB a card; an estimate far above is the estimator's fault (vllm-project/vllm issue 53013)."""
    size, capacity = float(event.values["value"]), part.facts.get("capacity_bytes") or 0.0
    if size <= max(_GRAPHS_SHARE * capacity, _GRAPHS_BYTES):
        return
    yield Finding(
        id="start-up.graph-estimate",
        role="root",
        severity="warning",
        claim=f"{part.facts['engine']} estimates {_gib(size)} for CUDA graphs, which is not plausible, and takes it from "
        "the cache",
        evidence=(Evidence(file=file, line=event.line, value=event.values["text"]),),
        expected="0.46 – 6.3 GiB a card",
        observed=_gib(size),
        confidence="supported",
        fix="VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 with a lower share of memory",
        predicted_effect=f"about {_gib(size)} more for the cache",
    )


def _preempted(file: str, part: Part, event: Event) -> Finding:
    usage = part.facts.get("peak_kv_cache_usage")
    return Finding(
        id="serving.preemptions",
        role="symptom",
        severity="warning",
        claim=f"requests are preempted for lack of cache, {part.facts['preemptions']} in this log; each is computed again",
        evidence=(Evidence(file=file, line=event.line, value=event.values["text"]),),
        expected="0 preemptions",
        observed=f"{part.facts['preemptions']}" + (f", cache {usage:.0%} full at most" if usage else ""),
        confidence="established",
        fix="fewer sequences at once, a larger share of memory for the cache, FP8 cache, or more GPUs",
    )


RULE = Rule(needs=(KIND,), judge=_judge)
