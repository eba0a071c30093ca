"""A serving run beside what the estimator expects of it: cache and ledger of its start, tokens a second of its load.

The load is what the log shows: requests that run, prompt over generated tokens, and tokens in the cache. In a steady state
a request holds ``prompt + output / 2`` tokens on average, and ``prompt / output`` is the ratio of both rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trilemma.diagnosis.expectation import Expectation, away, plain, shown
from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.engine_start import KIND as START
from trilemma.diagnosis.readers.serving_load import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.errors import InputError
from trilemma.estimate.checking import measured_start
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.measured import LogComparison
from trilemma.intervals import Interval
from trilemma.plans import Plan
from trilemma.quantities import GIB
from trilemma.workloads import Serving

_LONGEST = 1 << 20
#: More than its range by this much is worth a finding of its own.
_CLEARLY_BYTES = 1 * GIB


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for file, part in case.parts(START):
        expectation = case.expectations.get(file)
        if expectation is not None and _serves(expectation):
            try:
                measured = measured_start(expectation.answer.question, part.whole).measured
            except InputError as error:
                yield Missing(what=f"the ledger beside {file}: {error}")
                continue
            finding = _of_start(file, measured, expectation.said)
            if finding is not None:
                yield finding
            yield from _lines(file, measured, expectation.said)
    for file, part in case.parts(KIND):
        expectation = case.expectations.get(file)
        if expectation is not None and _serves(expectation):
            start = next((one for where, one in case.parts(START) if where == file), None)
            yield from _speed(file, part, start, expectation)


def _serves(expectation: Expectation) -> bool:
    return isinstance(expectation.answer.question.plan, Plan) and len(expectation.answer.question.plan.pools) == 1


def load_of(facts: Mapping[str, Any], tokens: float | None, stated: Serving) -> Serving | None:
    """The load that the log shows, with what was stated of it in its place; None where it shows no request."""
    running = facts.get("running", 1 if "generated_tokens_per_s_of_a_request" in facts else 0)
    if not running:
        return None
    isl, osl = stated.isl, stated.osl
    prompt, generated = facts.get("prompt_tokens_per_s", 0.0), facts.get("generated_tokens_per_s", 0.0)
    hit = facts.get("prefix_hit", 0.0) or stated.prefix_hit
    if isl is None and "prompt_tokens" in facts and facts.get("requests"):
        isl = max(round(facts["prompt_tokens"] / facts["requests"]), 1)
        osl = max(round(facts.get("generated_tokens", 1) / facts["requests"]), 1)
    if isl is None or osl is None:
        cached = facts.get("cached_tokens") or (facts.get("kv_cache_usage", 0.0) * tokens if tokens else None)
        if not cached or not generated:
            return None
        held, ratio = cached / running, prompt / generated
        osl = max(round(held / (ratio + 0.5)), 1)
        isl = max(round(held - osl / 2), 1)
    if max(isl, osl) > _LONGEST:
        return None
    most = stated.context
    if most is not None and isl + osl > most:
        osl = max(min(osl, most - 1), 1)
        isl = max(min(isl, most - osl), 1)
    return replace(stated, isl=isl, osl=osl, concurrency=max(round(running), 1), rate=None, prefix_hit=min(hit, 0.99))


def _speed(file: str, part: Part, start: Part | None, expectation: Expectation) -> Iterator[Finding | Missing]:
    facts, question = part.facts, expectation.answer.question
    cache = expectation.answer.cache
    tokens = (start.facts.get("kv_cache_tokens") if start is not None else None) or (cache.tokens.value if cache else 0)
    load = load_of(facts, tokens, question.workload)
    if load is None:
        yield Missing(
            what=f"the load of {file} (--isl, --osl): its lines tell neither lengths nor cached tokens of a loaded engine"
        )
        return
    answer = expectation.priced(replace(question, workload=load))
    observed = facts.get("generated_tokens_per_s") or facts.get("generated_tokens_per_s_of_a_request")
    if answer is None or answer.speed is None or answer.speed.output_tokens_per_s is None or not observed:
        yield Missing(what=f"the speed of {file}: {expectation.said} has no speed under the load that it shows")
        return
    yield _finding(file, part, answer, answer.speed.output_tokens_per_s, observed, load, expectation)


def _finding(
    file: str, part: Part, answer: Estimate, figure: Interval, observed: float, load: Serving, expectation: Expectation
) -> Finding:
    outside = away(observed, figure)
    slow = outside < 0
    causes = list(_causes(part.facts, answer, expectation)) if slow else []
    proof = tuple(Evidence(file=file, line=one.line, value=one.values["text"]) for one in part.events[:1])
    words = f"{load.concurrency} requests of {load.isl} + {load.osl} tokens"
    share = observed / figure.value
    gap = "as expected"
    if slow:
        token = load.concurrency or 1
        lost = token / observed - token / figure.value
        named = "; ".join(text for text, _ in causes) or "no line of this log explains it"
        gap = f"the gap is {1 - share:.0%}, {lost * 1e3:.3g} ms of each token, by cause: {named}"
    elif outside > 0:
        gap = f"{share:.2f} times what is expected: the load is lighter than it looks, or the card does better"
    fix = next((fix for _, fix in causes if fix), None) if slow else None
    return Finding(
        id="serving.throughput",
        role="symptom" if slow else "context",
        severity="warning" if slow else "context",
        claim=f"expected {shown(figure)} tokens/s under {words} ({expectation.said}), observed {plain(observed)}: {gap}",
        evidence=proof,
        expected=f"{shown(figure)} tokens/s",
        observed=f"{plain(observed)} tokens/s",
        confidence="supported" if not slow or causes else "hypothesis",
        fix=fix or ("profile one step (trilemma diagnose TRACE names the line that is longer than expected)" if slow else None),
        predicted_effect=f"{figure.value / observed:.2f} times as many tokens a second" if slow else None,
    )  # fmt: skip


def _causes(facts: Mapping[str, Any], answer: Estimate, expectation: Expectation) -> Iterator[tuple[str, str | None]]:
    """(in words, what mends it) of what the log shows and a second estimate puts a number on."""
    plan = answer.question.plan
    running = answer.question.workload.concurrency or 1
    if facts.get("without_graphs") and not plan.pool.options.eager:
        eager = replace(plan.pool.options, eager=True)
        slower = expectation.priced(
            replace(answer.question, plan=replace(plan, pools=(replace(plan.pool, options=eager),)))
        )
        if slower is not None and slower.speed is not None and slower.speed.output_tokens_per_s is not None:
            lost = running / slower.speed.output_tokens_per_s.value - running / answer.speed.output_tokens_per_s.value  # type: ignore[union-attr]
            yield f"decode runs without CUDA graphs, {lost * 1e3:.3g} ms of each token", "let it capture graphs"
    if facts.get("waiting"):
        yield (
            f"{facts['waiting']:.0f} requests wait: more would run with more cache or a higher limit of sequences",
            None,
        )
    if facts.get("preemptions"):
        yield "preempted requests are computed again", "fewer sequences at once, or more cache"
    if facts.get("prompt_tokens_per_s", 0.0) > 0 and answer.speed is not None and answer.speed.operators:
        longest = max(answer.speed.operators, key=lambda one: one.seconds)
        yield f"the longest part of a token should be {longest.name} ({longest.seconds * 1e3:.3g} ms)", None


def _lines(file: str, lines: tuple[LogComparison, ...], said: str) -> Iterator[Finding]:
    """Lines of the start that hold clearly more than they should."""
    for one in lines:
        more = one.measured - one.high
        if one.name == "kv_cache_bytes" or not one.diverges or more < _CLEARLY_BYTES:
            continue
        where, _, number = one.where.rpartition(":")
        name = one.name.removesuffix("_bytes").replace("_", " ")
        yield Finding(
            id=f"memory.{one.name.removesuffix('_bytes').replace('_', '-')}-beside-estimate", role="symptom", severity="warning",
            claim=f"expected {one.predicted / GIB:.2f} ({one.low / GIB:.2f} – {one.high / GIB:.2f}) GiB of {name} ({said}), "
            "observed "
            f"{one.measured / GIB:.2f}",
            evidence=(Evidence(file=where or file, line=int(number) if number.isdecimal() else None,
                               value=f"{name} {one.measured / GIB:.2f} GiB"),),
            expected=f"{one.predicted / GIB:.2f} ({one.low / GIB:.2f} – {one.high / GIB:.2f}) GiB",
            observed=f"{one.measured / GIB:.2f} GiB", confidence="supported",
            fix="leave that much more beside the cache (a lower share of memory), or make the line smaller: fewer captured "
            "sizes, "
            "smaller steps",
        )  # fmt: skip


def _of_start(file: str, lines: tuple[LogComparison, ...], said: str) -> Finding | None:
    """The start beside the ledger, from figures predicted and measured: the gap of the cache by line."""
    cache = next((one for one in lines if one.name == "kv_cache_bytes"), None)
    parts = [one for one in lines if one.name != "kv_cache_bytes"]
    if cache is None:
        return None
    gap = cache.measured - cache.predicted
    causes = [(one.name.removesuffix("_bytes").replace("_", " "), one.measured - one.predicted) for one in parts]
    rest = gap + sum(size for _, size in causes)
    told = [f"{name} {size / GIB:+.2f} GiB" for name, size in sorted(causes, key=lambda one: -abs(one[1])) if size]
    if abs(rest) > 0.02 * GIB:
        told.append(f"{-rest / GIB:+.2f} GiB of lines that the log does not state")
    odd = cache.diverges
    where, _, line = cache.where.rpartition(":")
    return Finding(
        id="memory.cache-beside-estimate",
        role="symptom" if odd and gap < 0 else "context",
        severity="warning" if odd and gap < 0 else "context",
        claim=f"expected a cache of {cache.predicted / GIB:.2f} ({cache.low / GIB:.2f} – {cache.high / GIB:.2f}) GiB ({said}), "
        f"observed {cache.measured / GIB:.2f}: the gap is {gap / GIB:+.2f} GiB, by cause: " + (", ".join(told) or "none"),
        evidence=(Evidence(file=where or file, line=int(line) if line.isdecimal() else None,
                           value=f"cache {cache.measured / GIB:.2f} GiB"),),
        expected=f"{cache.predicted / GIB:.2f} ({cache.low / GIB:.2f} – {cache.high / GIB:.2f}) GiB",
        observed=f"{cache.measured / GIB:.2f} GiB",
        confidence="supported",
        fix="see the line with the largest difference: other processes, another version or other options take it"
        if odd and gap < 0 else None,
    )  # fmt: skip


RULE = Rule(needs=(KIND, START), judge=_judge)
