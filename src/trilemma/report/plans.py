"""A search for people: the best plans in a row each, the command of the best, the front, and why the others lost."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.estimate.estimate import Estimate
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.price import price_words
from trilemma.quantities import counted, show_count
from trilemma.report.chances import chance_words, joint_chance, joint_words, percent
from trilemma.report.plan_words import load_words, memory_bar, money, seconds, weights_words
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped
from trilemma.search.found import Found
from trilemma.search.precisions import AS_PUBLISHED
from trilemma.search.quality import cache_quality
from trilemma.search.result import SearchResult

_HEADERS = (
    "#", "layout", "weights", "KV", "longest", "at once", "tok/s/GPU", "tok/s/user", "mean TTFT", "mean TPOT", "$/M tok",
    "memory per GPU",    "bound by",
)  # fmt: skip
#: Columns that give way where the window is narrow, the first first.
_YIELDS = ("bound by", "longest", "tok/s/user", "memory per GPU", "at once", "KV")
_FRONT_YIELDS = ("KV", "at once")
_MOST_REASONS = 8


def render_plans(
    result: SearchResult, *, model: str, cluster: Cluster, width: int = 140, explanation: tuple[str, ...] = ()
) -> str:
    """The whole answer. ``explanation`` says where the speed of the best plan comes from."""
    title = search_title(result, model=model, cluster=cluster)
    sure = "" if result.confidence is None else f", each with a chance of at least {percent(result.confidence)}"
    parts = [f"{title}: {load_words(result.workload)}{sure}", *(f"assumed: {words}" for words in assumed_words(result))]
    best = result.plans[: result.best]
    if not best:
        return "\n".join([*parts, "", nothing_found(result), *_losers(result)])
    if not result.meets_targets:
        parts.append("NO PLAN MEETS THE TARGETS; these come nearest")
        for words in result.blocked:
            parts += wrapped(words, width, subsequent_indent="  ")
    parts += [
        "",
        *_table(result, width),
        *_range(best[0], width),
        *joint_words(result),
        *_counted(result),
        "",
        *_commands(best, width),
    ]
    parts += _quality(best, width)
    parts += [
        "",
        *_front(result, width),
        "",
        *_losers(result),
        "",
        *_price(best[0].estimate, cluster, width),
        *_warnings(best[0].estimate, width),
    ]
    if explanation:
        parts += ["", "where the speed of #1 comes from"]
        for sentence in explanation:
            parts += wrapped(sentence, width, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(line.rstrip() for line in parts)


def search_title(result: SearchResult, *, model: str, cluster: Cluster) -> str:
    """The model and the GPUs that were searched for it."""
    how_many = "any number of" if result.free else f"{cluster.gpus} x"
    return f"{model} on {how_many} {cluster.accelerator.name}"


def nothing_found(result: SearchResult) -> str:
    """Why there is no plan to show: none fits, or those that fit do not carry the load."""
    if not result.fitting:
        return "no plan fits"
    return f"no plan carries this load: {counted(result.fitting, 'plan')} would fit, none keeps up"


def nearest_words(nearest: Estimate, result: SearchResult) -> str:
    """What the plainest plan, shown where nothing else can be, is an answer to."""
    if not nearest.fits:
        return "the plainest plan, and what would make it fit"
    if result.fitting:
        return "the plainest plan fits, but does not carry the load: give more GPUs or a smaller load"
    return "the plainest plan of the checkpoint as published fits; those asked for do not"


def assumed_words(result: SearchResult) -> Iterator[str]:
    yield from result.assumed
    if result.free:
        yield "engines of up to a node's GPUs, as many side by side as needed (give --gpu G:N for a number of GPUs)"
    if any(found.plan.gpus < found.estimate.question.cluster.gpus for found in result.plans[: result.best]):
        yield "GPUs that a plan leaves idle count in its tokens per GPU and its price"
    latest = [found.estimate.speed.ttft_s for found in result.plans[: result.best] if found.estimate.speed is not None]
    if result.workload.ttft_ms is None and any(latest):
        slowest = max((one for one in latest if one is not None), key=lambda one: one.interval.value)
        yield f"no --ttft: plans with a time to the first token of up to {seconds(slowest)} are shown"
    if result.workload.context is None and result.plans:
        yield f"no request longer than {counted(result.workload.longest_request or 0, 'token')} (--context)"


def _table(result: SearchResult, width: int) -> list[str]:
    """The plans, with their number of GPUs where it was searched, and the chances of the targets where there are any."""
    best = result.plans[: result.best]
    headers, rows = list(_HEADERS), [_row(rank, found) for rank, found in enumerate(best, 1)]
    sides = list("rlllrrrrrrrll")
    if result.free:
        headers.insert(1, "GPUs")
        sides.insert(1, "r")
        for row, found in zip(rows, best, strict=True):
            row.insert(1, show_count(found.gpus))
    for at, name in ((-5, "ttft"), (-4, "tpot")):
        if getattr(result.workload, f"{name}_ms") is not None:
            headers[at] = f"mean {name.upper()}, holds"
            for row, found in zip(rows, best, strict=True):
                row[at] += f" {chance_words(found.estimate, name)}"
    return render_table(headers, rows, align="".join(sides), width=width, yields=_YIELDS).splitlines()


def _counted(result: SearchResult) -> Iterator[str]:
    """What a search over the number of GPUs found."""
    if not result.free or not result.meets_targets:
        return
    if result.least_gpus is not None:
        asked = result.workload.ttft_ms or result.workload.tpot_ms
        chance = joint_chance(result.plans[0].estimate)
        within = f" within the targets, with a chance of {percent(chance)}" if asked and chance is not None else ""
        yield f"fewest GPUs that carry this load{within}: {show_count(result.least_gpus)} (#1)"
    if result.cheapest is not None:
        found = result.plans[result.cheapest]
        cost = found.estimate.usd_per_million_tokens
        dollars = f", {money(cost)} per million output tokens" if cost is not None else ""
        gpus = counted(found.gpus, "GPU")
        yield f"most tokens for each GPU: #{result.cheapest + 1} with {gpus}{dollars}"


def _row(rank: int, found: Found) -> list[str]:
    answer, speed = found.estimate, found.estimate.speed
    head = [
        str(rank),
        answer.summary,
        weights_words(found),
        found.kv_format,
        show_count(answer.cache.max_context) if answer.cache is not None else "–",
        show_count(found.requests) if found.requests else "<1",
    ]
    if speed is None or speed.tokens_per_s_per_gpu is None or speed.tpot_s is None or speed.ttft_s is None:
        return [*head, "–", "–", "–", "–", "–", memory_bar(answer), answer.verdict.stage]
    per_gpu = speed.tokens_per_s_per_gpu
    return [
        *head,
        show_count(per_gpu.value),
        f"{1 / speed.tpot_s.interval.value:,.1f}",
        seconds(speed.ttft_s),
        seconds(speed.tpot_s),
        money(answer.usd_per_million_tokens),
        memory_bar(answer),
        answer.bottleneck.resource.replace("_", " ") if answer.bottleneck else "",
    ]


def _range(found: Found, width: int) -> Iterator[str]:
    said = "longest: tokens of a single request that the pool has room for, within the model's limit; at once: over all GPUs;"
    said += " TTFT and TPOT: means over requests, P50 and P99 in --json"
    yield from wrapped(said, width)
    speed = found.estimate.speed
    if (
        speed is not None
        and speed.tokens_per_s_per_gpu is not None
        and speed.tpot_s is not None
        and speed.ttft_s is not None
    ):
        rate, tpot, ttft = speed.tokens_per_s_per_gpu, speed.tpot_s.interval, speed.ttft_s.interval
        yield (
            f"90 % ranges of #1: {show_count(rate.low)} – {show_count(rate.high)} tok/s/GPU,"
            f" mean TPOT {tpot.low * 1e3:,.1f} – {tpot.high * 1e3:,.1f} ms, mean TTFT {ttft.low:,.2f} – {ttft.high:,.2f} s"
            + (f" (as {speed.ranges} tell)" if speed.ranges else "")
        )


def _commands(best: tuple[Found, ...], width: int) -> Iterator[str]:
    """The command of the best plan, and of the best that runs the checkpoint as it is published."""
    yield "run the best plan"
    yield from _command(best[0])
    precision = best[0].precision
    if precision.checkpoint != AS_PUBLISHED:
        yield from wrapped(f"(needs {precision.checkpoint})", width, initial_indent="  ")
    elif precision.instead_of is not None:
        page = f"(published: huggingface.co/{precision.served_as}, {precision.name} of {precision.instead_of})"
        yield from wrapped(page, width, initial_indent="  ", subsequent_indent="   ")
    if _unchanged(best[0]):
        return
    for rank, found in enumerate(best[1:], 2):
        if _unchanged(found):
            yield f"with weights and cache as published (#{rank})"
            yield from _command(found)
            return


def _command(found: Found) -> Iterator[str]:
    """The engine's command, for each pool where there are several, and how many of it run side by side."""
    pools = found.estimate.commands
    if not pools:
        times = found.plan.pool.replicas
        own = ", each with cards of its own" if "_VISIBLE_DEVICES=" in str(found.estimate.command) else ""
        yield f"  {found.estimate.command}" + (f"   ({times} of them behind a router{own})" if times > 1 else "")
        return
    for one in pools:
        yield f"  {one.pool}, {one.replicas} of them: {one.command}"
    yield "  (trilemma export writes the files that join the pools, router included)"


def _unchanged(found: Found) -> bool:
    return found.precision.quality == "unchanged" and found.plan.pools[-1].options.kv_dtype in (None, "auto")


def _quality(best: tuple[Found, ...], width: int) -> Iterator[str]:
    """What each change of precision shown is published to cost."""
    told = {found.precision.name: found.precision.quality for found in best if found.precision.quality != "unchanged"}
    for found in best:
        kv = found.plan.pools[-1].options.kv_dtype
        if kv not in (None, "auto"):
            told[f"{kv} KV cache"] = cache_quality(kv)
    if told:
        yield ""
        yield "published cost in answers"
    for name, quality in told.items():
        yield from wrapped(f"{name}: {quality}", width, initial_indent="  ", subsequent_indent="    ")


def _front(result: SearchResult, width: int) -> Iterator[str]:
    yield "throughput against speed for each reader (Pareto front)"
    rows = [
        [
            show_count(point.tokens_per_s_per_gpu), f"{point.tokens_per_s_per_user:,.1f}", point.layout, point.precision,
            point.kv_format, show_count(point.requests) if point.requests else "<1",
        ]
        for point in result.front
    ]  # fmt: skip
    headers = ("tok/s/GPU", "tok/s/user", "layout", "weights", "KV", "at once")
    table = render_table(headers, rows, align="rrlllr", width=width - 2, yields=_FRONT_YIELDS)
    yield from (f"  {line}" for line in table.splitlines())


def _losers(result: SearchResult) -> Iterator[str]:
    yield (
        f"searched {counted(result.searched, 'plan')} in {result.seconds:.2f} s: {show_count(result.legal)} legal,"
        f" {show_count(result.fitting)} fit; why the others lost"
    )
    for why, count in list(result.rejected.items())[:_MOST_REASONS]:
        yield f"  {show_count(count):>9}  {why}"


def _price(estimate: Estimate, cluster: Cluster, width: int) -> Iterator[str]:
    price, card = estimate.usd_per_hour, cluster.accelerator
    if price is None:
        return
    total = f"price: ${price.value:,.2f} an hour for all GPUs (${price.low:,.2f} – ${price.high:,.2f})"
    yield from wrapped(f"{total}; {price_words(card)}: {card.price_source}", width, subsequent_indent="      ")


def _warnings(estimate: Estimate, width: int) -> Iterator[str]:
    for warning in estimate.warnings:
        if warning.code == "price":
            continue  # told with the price
        yield from wrapped(warning.message, width, initial_indent="note: ", subsequent_indent="      ")
