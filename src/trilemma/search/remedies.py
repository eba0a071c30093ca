"""What would make a plan fit: candidate changes in order of cost, each tried, the cheapest that really fit returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trilemma import engines
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate, Remedy
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.models.catalogue import served_id
from trilemma.plans import Layout, Plan, ServeOptions
from trilemma.plans.words import layout_words
from trilemma.quantities import counted, show_count, show_gib
from trilemma.question import ServingQuestion
from trilemma.search.engine_remedies import on_other_engines
from trilemma.search.memory_fraction import advised_fraction
from trilemma.search.precisions import kv_dtypes, precisions
from trilemma.search.quality import cache_quality
from trilemma.workloads import Serving

#: Prices a plan of any size: the layout says how many GPUs it takes.
Evaluate = Callable[[Plan, Model], Estimate]

#: A shorter context than this serves nobody.
_LEAST_CONTEXT = 1024
_CONTEXT_STEP = 1024
#: How much more context a change has to buy to be worth telling.
_CLEARLY = 1.25
_SURE = 0.9  # the chance from which on a change is said to fit without it
_SEQUENCES = (64, 16, 4, 1)
_BATCHED_TOKENS = (4096, 2048, 1024)
#: Shares of the card beyond the default that leave room for what lies outside the budget, tried in order.
_FRACTIONS = (0.94, 0.96, 0.98)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemedyCandidate:
    """One candidate: what is changed and the plan and model that result. ``cost`` orders them, cheapest first."""

    words: str
    plan: Plan
    model: Model
    cost: float
    quality: str = "unchanged"
    served_as: str | None = None


def remedies(
    evaluate: Evaluate,
    question: ServingQuestion,
    *,
    gpus: int,
    failing: Estimate | None = None,
    most: int = 3,
) -> tuple[Remedy, ...]:
    """Up to ``most`` changes that make the plan of ``question`` fit, cheapest first, each verified by ``evaluate``.

    In order of cost: options that change no answer and no promise, then those that bound what can be asked, then those
    that change answers (cache and weight formats), another engine, pairs of these, and last more GPUs. ``gpus`` are at
    hand; ``failing`` is the plan's own estimate when it is known. ``flags`` hold the whole command.
    """
    failing = failing or evaluate(question.plan, question.model)
    found: list[Remedy] = []
    misses: list[tuple[RemedyCandidate, Estimate]] = []
    for change in _changes(evaluate, question, gpus, failing, misses):
        if len(found) == most:
            break
        answer = _tried(evaluate, change)
        if answer is not None and answer.fits:
            found.append(_remedy(change, answer, failing))
        elif answer is not None:
            misses.append((change, answer))
    return tuple(sorted(found, key=lambda remedy: remedy.cost_rank))


def _changes(
    evaluate: Evaluate,
    question: ServingQuestion,
    gpus: int,
    failing: Estimate,
    misses: list[tuple[RemedyCandidate, Estimate]],
) -> Iterator[RemedyCandidate]:
    """Changes in order of cost; ``misses`` grows while they are tried, and what missed is tried in pairs."""
    plan, model, workload = question.plan, question.model, question.workload
    accelerator = question.cluster.accelerator
    yield from _shorter(plan, model, workload, failing)
    yield from _option_changes(plan, model, failing)
    yield from _engine_changes(evaluate, plan, model)
    yield from _cache_format(plan, model, accelerator)
    yield from _more_tensor_parallel(plan, model, gpus)
    yield from _narrower_weights(plan, model, accelerator)
    yield from _other_engines(evaluate, question)
    yield from _pairs(list(misses), workload, failing)
    yield from _more_gpus(plan, model, gpus)


def _option_changes(plan: Plan, model: Model, failing: Estimate) -> Iterator[RemedyCandidate]:
    """Options that only cost speed or admit fewer requests at once."""
    options = plan.pool.options
    bounds = failing.start_up.get("feasible_memory_fraction")
    now = failing.start_up.get("memory_fraction")
    if bounds is not None and now is not None and not bounds[0] <= now <= bounds[1]:
        share = advised_fraction(bounds, now)
        yield _with(plan, model, f"memory fraction {share:g} instead of {now:g}", 1.0, memory_fraction=share)
    for tokens in _BATCHED_TOKENS:
        if options.max_batched_tokens is None or tokens < options.max_batched_tokens:
            yield _with(plan, model, f"at most {counted(tokens, 'token')} in a step", 2.0, max_batched_tokens=tokens)
            break
    for sequences in _SEQUENCES:
        if options.max_seqs is None or sequences < options.max_seqs:
            yield _with(plan, model, f"at most {counted(sequences, 'sequence')} at once", 3.0, max_seqs=sequences)
            break
    if not options.eager:
        yield _with(plan, model, "no CUDA graphs (slower decode)", 4.0, eager=True)


def _engine_changes(evaluate: Evaluate, plan: Plan, model: Model) -> Iterator[RemedyCandidate]:
    """What the engine itself can do about memory: layers or experts on the host, cache types of its own."""

    def with_options(options: ServeOptions) -> Plan:
        return replace(plan, pools=(replace(plan.pool, options=options),))

    def fits(options: ServeOptions) -> bool:
        answer = _tried(evaluate, RemedyCandidate(words="", plan=with_options(options), model=model, cost=0.0))
        return answer is not None and answer.fits

    for words, options, cost, quality in engines.get(plan.engine.name).changes(plan, model, fits):
        yield RemedyCandidate(words=words, plan=with_options(options), model=model, cost=cost, quality=quality)


def _shorter(plan: Plan, model: Model, workload: Serving, failing: Estimate) -> Iterator[RemedyCandidate]:
    """The longest context that the pool admits, unless the load itself needs more."""
    cache = failing.cache
    needed = max(_LEAST_CONTEXT, (workload.isl or 0) + (workload.osl or 0))
    if cache is None or cache.max_context < needed:
        return
    length = max(cache.max_context // _CONTEXT_STEP * _CONTEXT_STEP, needed)
    words = f"context of {counted(length, 'token')} instead of {show_count(failing.context or 0)}"
    # what the engine defaults to is no promise: where nobody asked for it, it is the first to go
    asked = workload.context is not None or needed > _LEAST_CONTEXT
    change = _with(plan, model, words, 5.0 if asked else 0.5, context=length)
    yield replace(change, quality=f"answers unchanged, requests beyond {counted(length, 'token')} refused")


def _cache_format(plan: Plan, model: Model, accelerator: Accelerator) -> Iterator[RemedyCandidate]:
    if plan.pool.options.kv_dtype in (None, "auto") and "fp8" in kv_dtypes(model, accelerator, None):
        change = _with(plan, model, "KV cache in FP8", 6.0, kv_dtype="fp8")
        yield replace(change, quality=cache_quality("fp8"))


def _more_tensor_parallel(plan: Plan, model: Model, gpus: int) -> Iterator[RemedyCandidate]:
    """More of the GPUs at hand for one replica: replicas given up, or idle GPUs taken."""
    layout = plan.pool.layout
    tp, pp, dp = int(layout.tp), int(layout.pp), int(layout.dp)
    for factor in (2, 4, 8):
        fewer = max(dp // factor, 1)
        if tp * factor * pp * fewer <= gpus:
            grown = _layout(plan, tp=tp * factor, dp=fewer)
            yield RemedyCandidate(
                words=f"{layout_words(grown.pool.layout)} instead of {layout_words(layout)}",
                plan=grown,
                model=model,
                cost=7.0,
            )


def _narrower_weights(plan: Plan, model: Model, accelerator: Accelerator) -> Iterator[RemedyCandidate]:
    for at, precision in enumerate(precisions(model, accelerator, None, engine=plan.engine.name)[1:]):
        on_load = precision.on_load
        words = f"weights quantised to {precision.name} while loading" if on_load else precision.checkpoint
        if precision.instead_of is not None:
            words = f"the published {precision.name} checkpoint {precision.served_as} (another download)"
        change = _with(plan, precision.model, words, 8.0 + at / 10, quantization=on_load)
        yield replace(change, quality=precision.quality, served_as=precision.served_as)


def _other_engines(evaluate: Evaluate, question: ServingQuestion) -> Iterator[RemedyCandidate]:
    def tried(other: Plan, stored: Model) -> Estimate | None:
        return _tried(evaluate, RemedyCandidate(words="", plan=other, model=stored, cost=0.0))

    found = on_other_engines(
        question.plan, question.model, question.cluster.accelerator, tried, readers=question.workload.concurrency or 1
    )
    for at, (words, other, weights, quality) in enumerate(found):
        yield RemedyCandidate(
            words=words,
            plan=other,
            model=weights.model,
            cost=8.8 + at / 100,
            quality=quality,
            served_as=weights.served_as,
        )


def _more_gpus(plan: Plan, model: Model, gpus: int) -> Iterator[RemedyCandidate]:
    """One more GPU as a pipeline stage where stages allow it, then the next powers of two in tensor parallel."""
    layout = plan.pool.layout
    tp, pp = int(layout.tp), int(layout.pp)
    total = int(layout.gpus)
    if tp == 1 and total == gpus:
        grown = _layout(plan, pp=pp + 1)
        yield RemedyCandidate(
            words=f"{counted(int(grown.pool.layout.gpus), 'GPU')}, {layout_words(grown.pool.layout)}",
            plan=grown,
            model=model,
            cost=9.0,
        )
    for factor in (2, 4, 8):
        for step, grown in enumerate((_layout(plan, tp=tp * factor), _layout(plan, pp=pp * factor))):
            if int(grown.pool.layout.gpus) > gpus:
                words = f"{counted(int(grown.pool.layout.gpus), 'GPU')}, {layout_words(grown.pool.layout)}"
                yield RemedyCandidate(words=words, plan=grown, model=model, cost=20.0 + factor + step / 10)


def _pairs(
    misses: list[tuple[RemedyCandidate, Estimate]], workload: Serving, failing: Estimate
) -> Iterator[RemedyCandidate]:
    """Two changes at once: a change that did not suffice with the context that it does allow, or with an FP8 cache.

    Only where the first buys a context that is clearly longer than without it.
    """
    alone = failing.cache.max_context if failing.cache is not None else 0
    in_fp8 = next((change for change, _ in misses if change.plan.pool.options.kv_dtype == "fp8"), None)
    for change, answer in misses:
        if answer.cache is None or answer.cache.max_context < _CLEARLY * alone:
            continue
        for shorter in _shorter(change.plan, change.model, workload, answer):
            yield _both(change, shorter)
    if in_fp8 is None:
        return
    for change, _ in misses:
        if change is not in_fp8:
            yield _both(change, replace(in_fp8, plan=_with(change.plan, change.model, "", 0, kv_dtype="fp8").plan))


def _both(first: RemedyCandidate, second: RemedyCandidate) -> RemedyCandidate:
    """``second``, whose plan builds on that of ``first``, told as the two changes that it is."""
    worse = [one.quality for one in (first, second) if one.quality != "unchanged"]
    return replace(
        first,
        words=f"{first.words}, and {second.words}",
        plan=second.plan,
        cost=first.cost + second.cost,
        quality="; ".join(worse) or "unchanged",
    )


def _with(plan: Plan, model: Model, words: str, cost: float, **options: object) -> RemedyCandidate:
    changed = replace(plan.pool, options=replace(plan.pool.options, **options))  # type: ignore[arg-type]
    return RemedyCandidate(words=words, plan=replace(plan, pools=(changed,)), model=model, cost=cost)


def _layout(plan: Plan, **degrees: int) -> Plan:
    old = plan.pool.layout
    grown: Layout = replace(old, **degrees)
    if int(old.ep) > 1:
        grown = replace(grown, ep=int(grown.tp) * int(grown.dp))
    return replace(plan, pools=(replace(plan.pool, layout=grown),))


def _tried(evaluate: Evaluate, change: RemedyCandidate) -> Estimate | None:
    """The change's estimate; None where the engine or the layout rules refuse it."""
    try:
        return evaluate(change.plan, change.model)
    except InputError:
        return None


def _remedy(change: RemedyCandidate, answer: Estimate, failing: Estimate) -> Remedy:
    """What the change does, and all that it costs: dollars, speed where weights lie on the host, requests refused."""
    effect = "fits"
    if answer.cache is not None:
        effect = (
            f"fits: {show_gib(answer.cache.available_bytes_per_gpu.value)} GiB of KV cache per GPU,"
            f" {counted(answer.cache.tokens.value, 'token')}, longest request {show_count(answer.cache.max_context)}"
        )
    if (
        answer.speed is not None
        and answer.speed.tpot_s is not None
        and (answer.speed.lines.get("host_weights") or change.plan.engine != failing.question.plan.engine)
    ):
        tpot = answer.speed.tpot_s.interval
        effect += f", {1 / tpot.value:.3g} tokens/s a request ({1 / tpot.high:.3g} to {1 / tpot.low:.3g})"
    if answer.usd_per_hour is not None and failing.usd_per_hour is not None:
        now, then = failing.usd_per_hour.value, answer.usd_per_hour.value
        effect += f", ${then:,.2f} an hour instead of ${now:,.2f}" if then > now * _CLEARLY else ""
    effect += f", {sure:.0%} sure" if (sure := answer.verdict.probability) < _SURE else ""
    quality, told = change.quality, failing.context or 0
    if answer.context and answer.context < told and "refused" not in quality:
        refused = f"requests beyond {counted(answer.context, 'token')} refused"
        quality = f"answers unchanged, {refused}" if quality == "unchanged" else f"{quality}; {refused}"
    asked = failing.question
    # The same files go by their own name.
    own = change.model is asked.model and change.plan.engine.name == asked.plan.engine.name
    served = change.served_as or (asked.named if own else served_id(change.model.name))
    command = engines.get(change.plan.engine.name).line(model=served, plan=change.plan)
    return Remedy(change=change.words, flags=command, effect=effect, quality=quality, cost_rank=change.cost)
