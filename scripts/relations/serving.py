"""Relations between answers to questions of serving. Each takes a question, its answer and somebody to ask, and gives what is
wrong, or None; it raises `Unasked` where it has nothing to say."""

# Relations take the same three arguments, whichever they need.
# ruff: noqa: ARG001

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trilemma as tl
from relations import options as of_options
from relations.asking import (
    Answers,
    Asked,
    Relation,
    Unasked,
    chosen,
    difference,
    document,
    figures,
    slots_stated,
    tokens_per_s,
)
from trilemma.cli.main import main
from trilemma.hardware.catalogue import find
from trilemma.models.architecture import ExpertFfn
from trilemma.report.schemas import schema_of

MODELS = (
    "qwen3-0.6b", "qwen3-8b", "qwen3-32b", "llama-3.1-8b", "llama-3.1-70b", "llama-2-13b", "mixtral-8x7b", "gpt-oss-20b",
    "gpt-oss-120b", "qwen3-30b-a3b", "glm-4.5-air", "deepseek-v3", "gemma-3-27b", "devstral-small-24b",
    "deepseek-r1-distill-qwen-14b", "llama-4-scout", "qwen3-next-80b-a3b", "phi-4", "qwen3-30b-a3b-nvfp4", "llama-3.1-70b-fp8",
    "qwen2.5-vl-7b", "nemotron-3-nano-30b-a3b", "deepseek-v3.2", "gemma-4-26b-a4b", "falcon-7b", "kimi-linear-48b-a3b",
)  # fmt: skip
CARDS = (
    "h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm4-80gb", "a100-sxm4-40gb", "l40s", "l4", "a10", "rtx-4090", "rtx-5090",
    "rtx-pro-6000-blackwell", "h100-nvl-94gb", "mi300x", "mi355x", "gb300", "rtx-3090", "t4",
)  # fmt: skip
APPLE = ("apple-m4-max", "apple-m3-ultra", "apple-m2-pro")
ENGINES = (
    "vllm", "vllm", "vllm", "sglang", "sglang", "tensorrt-llm", "llama.cpp", "llama.cpp", "lmdeploy", "ollama", "lm-studio",
    "mlx-lm",
)  # fmt: skip
#: Engines that load GGUF files, and the files and caches that they are asked with.
GGUF = ("llama.cpp", "ollama", "lm-studio")
FILES, FILE_CACHES = ("Q4_K_M", "Q4_K_M", "Q8_0", "Q6_K", "Q4_0"), ("q8_0", "q4_0", "f16")


RELATIONS: dict[str, Relation] = {}


def relation(check: Relation) -> Relation:
    RELATIONS[check.__name__.replace("_", " ")] = check
    return check


def draw(rng: random.Random) -> Asked:
    """A question that somebody might ask."""
    engine = rng.choice(ENGINES)
    options: dict[str, Any] = {
        "isl": rng.choice((64, 128, 500, 1024, 2048, 4096, 16000, 32000)),
        "osl": rng.choice((2, 16, 64, 128, 512, 1024, 2048)),
        "concurrency": rng.choice((1, 2, 4, 8, 16, 64, 128, 256, 512)),
    }
    if engine != "vllm" or rng.random() < 0.3:
        options["engine"] = engine
    gpus = rng.choice((1, 1, 2, 2, 4, 8, 16)) if engine not in ("lm-studio", "mlx-lm") else 1
    precisions = FILES if engine in GGUF else (None, None, "fp8", "nvfp4", "bf16", "int4", "awq", "w8a8")
    if engine != "mlx-lm" and (precision := rng.choice(precisions)) is not None:
        options["precision"] = precision
    if gpus > 1:
        _laid_out(rng, options, gpus)
    chosen(rng, options, "max_seqs", 0.2, (8, 32, 256, 512))
    chosen(rng, options, "max_batched_tokens", 0.2, (1024, 2048, 8192))
    chosen(rng, options, "prefix_hit", 0.1, (0.25, 0.5, 0.9))
    chosen(rng, options, "sampling", 0.08, ("filtered", "penalized"))
    chosen(rng, options, "images", 0.04, (1, 4))
    chosen(rng, options, "draft", 0.08, ("mtp:1:0.8", "mtp:3:0.6", "ngram:4:0.3", "eagle3:3:0.5"))
    chosen(rng, options, "context", 0.08, (2 * (options["isl"] + options["osl"]),))
    if engine in GGUF:
        chosen(rng, options, "kv_dtype", 0.15, FILE_CACHES)
        chosen(rng, options, "host", 0.15, ("DDR5-5600x2", "epyc-9004", "40"))
    elif engine != "mlx-lm":
        chosen(rng, options, "memory_fraction", 0.2, (0.8, 0.85, 0.95))
        chosen(rng, options, "eager", 0.1, (True,))
        chosen(rng, options, "kv_dtype", 0.15, ("fp8", "auto"))
        if gpus > 1 and "prefill" not in options:
            chosen(rng, options, "ep", 0.1, (True,))
    return Asked(
        model=rng.choice(MODELS), card=rng.choice(APPLE if engine == "mlx-lm" else CARDS), gpus=gpus, options=options
    )


def _laid_out(rng: random.Random, options: dict[str, Any], gpus: int) -> None:
    """Degrees that ``gpus`` cards allow, or two pools of them, or neither."""
    what = rng.random()
    if what < 0.4:
        tp = rng.choice([one for one in (1, 2, 4, 8) if gpus % one == 0])
        options["tp"] = tp
        if gpus > tp:
            options[rng.choice(("pp", "pp", "dp"))] = gpus // tp
        elif tp > 1:
            chosen(rng, options, "dcp", 0.1, (2,))
    elif what < 0.46:
        before = rng.choice([one for one in (1, 2, 4, 8) if one < gpus])
        options |= {"prefill": f"1xTP{before}", "decode": f"1xTP{min(gpus - before, 8)}"}


def weights(answer: tl.Estimate) -> float:
    return float(answer.memory.ledger["weights"].bytes)


@relation
def lines_sum_to_the_byte(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    memory = answer.to_dict()["memory"]
    over = sum(line["bytes"] for line in memory["items"]) - memory["total_bytes"]
    headroom = memory["capacity_bytes"] - memory["total_bytes"] - memory["headroom_bytes"]
    return f"{over:+d} bytes, headroom {headroom:+d}" if over or headroom else None


@relation
def low_value_high(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    def walk(node: Any, where: str) -> str | None:
        if isinstance(node, dict):
            if {"low", "value", "high"} <= node.keys() and not node["low"] <= node["value"] <= node["high"]:
                return f"{where}: {node['low']} {node['value']} {node['high']}"
            for key, value in node.items():
                low, high = node.get(key.replace("bytes", "low_bytes")), node.get(key.replace("bytes", "high_bytes"))
                named = key.endswith("bytes") and key.replace("bytes", "low_bytes") in node and "low" not in key
                if named and not low <= value <= high:
                    return f"{where}.{key}: {low} {value} {high}"
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        return next((found for key, value in inner if (found := walk(value, f"{where}.{key}"))), None)

    return walk(answer.to_dict(), "")


@relation
def fits_within_the_card(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    memory = answer.memory
    if answer.fits and memory.total.value > memory.capacity_bytes:
        return f"fits with {memory.total.value / 2**30:.2f} of {memory.capacity_bytes / 2**30:.2f} GiB"
    return None


@relation
def probabilities_are_odds(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    sure = answer.verdict.probability
    return None if 0.5 <= sure <= 1 else f"verdict {answer.verdict.stage} with {sure}"


@relation
def littles_law(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Requests in flight are the rate at which they end times the time each takes."""
    rate, speed = tokens_per_s(answer), answer.speed
    if speed is None or speed.request_s is None:
        raise Unasked
    flying = rate / question.options["osl"] * speed.request_s.interval.value
    over = flying / question.options["concurrency"]
    return (
        None
        if 0.98 <= over <= 1.02
        else f"{flying:.4g} in flight by rate and time, {question.options['concurrency']} asked"
    )


@relation
def documents_follow_their_schema(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    found = next(_validator().iter_errors(ask.advised(question).to_dict()), None)
    return None if found is None else str(found.message)[:200]


@cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(schema_of("estimate"))


@relation
def no_phase_above_the_roof(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """By a count of our own: two FLOPs for each active weight of the layers and prompt token at the highest peak of the formats
    computed in; for a dense model also every byte of its layers at the memory's bandwidth for each step."""
    speed, layout = answer.speed, answer.question.plan.pool.layout
    if speed is None or speed.ttft_s is None or speed.tpot_s is None or answer.uses_host:
        raise Unasked
    card, model, ranks = find(question.card), answer.question.model, int(layout.tp) * int(layout.pp)
    tensors = [one for one in model.tensors if one.part == "layers" and len(one.shape) > 1]
    routed = {
        ffn.experts: min(ffn.top_k / ffn.experts, 1)
        for ffn in (layer.ffn for layer in model.layers)
        if isinstance(ffn, ExpertFfn)
    }
    active = sum(one.elements * (routed.get(one.experts, 1.0) if one.experts else 1.0) for one in tensors)
    fresh = question.options["isl"] * (1 - question.options.get("prefix_hit", 0.0))
    peak = max(figure.value for figure in card.peak_flops.values())
    least_s = 2 * active * fresh / (ranks * peak)
    if (took_s := speed.ttft_s.interval.value) < least_s:
        return f"prompt in {took_s:.4g} s, {least_s:.4g} at the peak"
    least_s = sum(one.roof_s or 0.0 for one in speed.operators)
    if (took_s := speed.tpot_s.interval.value) < least_s * (1 - 1e-9):
        return f"token in {took_s:.6g} s, {least_s:.6g} at the roofs of its lines"
    least_s = 0 if routed else sum(one.bytes for one in tensors) / (ranks * card.bandwidth_bytes_per_s.value)
    draft = answer.question.plan.pool.draft
    took_s *= 1.0 if draft is None else 1.0 + draft.tokens * draft.acceptance
    return f"step in {took_s:.4g} s, {least_s:.4g} to read the weights" if took_s < least_s * int(layout.pp) else None


@relation
def no_mfu_above_one(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    share = None if answer.speed is None else answer.speed.mfu
    if share is None:
        raise Unasked
    return None if 0 <= share.low <= share.value <= share.high <= 1 + 1e-9 else f"MFU {share}"


@relation
def longer_contexts_need_no_fewer_bytes(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """One request of full context never needs fewer bytes when it is longer. The bytes of one more token may fall: windows that
    are full take nothing more."""
    batch = answer.question.plan.pool.options.max_batched_tokens or 2048  # engines derive it from the context
    question = slots_stated(question, answer)
    here, twice = (
        ask.variant(question.but(context=times * (answer.context or 1), max_batched_tokens=int(batch)))
        for times in (1, 2)
    )
    if here.uses_host or twice.uses_host:
        raise Unasked  # layers that make room on the card take their cache with them
    if question.gpus > 1 and question.options.get("engine") == "ollama":
        raise Unasked  # it takes the fewest cards that hold all
    one, two = (float(a.start_up["needed_for_one_request_gib"]) * 2**30 for a in (here, twice))
    if two < one * (1 - 1e-3):
        return f"{one:.6g} bytes for a request of {here.context}, {two:.6g} of {twice.context}"
    rates = [a.cache.bytes_per_token if a.cache else 0 for a in (here, twice)]
    if rates[1] < rates[0] * (1 - 1e-9) and all(mixer.label == "full" for mixer in here.question.model.mixers):
        return f"{rates[0]:g} bytes a token, {rates[1]:g} when longer"
    return None


def doubled(question: Asked, ask: Answers) -> tl.Estimate:
    """Twice the GPUs: the degree that is stated doubled, tensor before pipeline."""
    by = next((name for name in ("tp", "pp", "dp") if name in question.options), None)
    more = {} if by is None else {by: 2 * question.options[by]}
    return ask.variant(question.but(gpus=2 * question.gpus, **more))


def own_rules_alike(one: tl.Estimate, more: tl.Estimate) -> tl.Estimate:
    """``more``, where the engine itself takes no other share of the card nor captures other batches for more ranks: SGLang does
    both (server_args.py: cuda_graph_max_bs from four ranks on, a GiB of reserve for every eight)."""
    lines = [answer.memory.ledger.get("cuda_graphs") for answer in (one, more)]
    graphs = [0.0 if line is None else float(line.bytes) for line in lines]
    if one.start_up.get("memory_fraction") != more.start_up.get("memory_fraction") or graphs[1] > graphs[0] * 1.5:
        raise Unasked
    return more


@relation
def more_gpus_never_more_weights_on_each(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Where nothing lies on the host: an engine that spills takes what more cards have room for."""
    if answer.uses_host:
        raise Unasked
    one, two = weights(answer), weights(doubled(question, ask))
    return None if two <= one * (1 + 1e-9) else f"{one / 2**30:.3f} GiB on each, {two / 2**30:.3f} on twice as many"


@relation
def more_gpus_never_fewer_cache_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """With the slots stated, as where more of a card is free: chosen, they may be fewer on more cards, which then hold all
    layers."""
    more = own_rules_alike(answer, doubled(slots_stated(question, answer), ask))
    if not (answer.cache and more.cache):
        raise Unasked
    one, two = answer.cache.tokens.value, more.cache.tokens.value
    return f"{one:,.0f} tokens on {question.gpus}, {two:,.0f} on twice as many" if two < one * (1 - 1e-6) else None


@relation
def more_gpus_never_turn_yes_into_no(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if not answer.fits:
        raise Unasked
    more = own_rules_alike(answer, doubled(question, ask))
    return None if more.fits else f"fits on {question.gpus}, {more.verdict.stage} on twice as many"


@relation
def fewer_bits_never_heavier(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """On a rank."""
    if question.options.get("engine") in (*GGUF, "mlx-lm"):
        raise Unasked
    names, sizes = ("nvfp4", "fp8", "bf16"), []
    for name in names:
        try:
            sizes.append(weights(ask.variant(question.but(precision=name))))
        except Unasked:
            continue
    return None if sizes == sorted(sizes) else f"{', '.join(names)}: {[round(one / 2**30, 3) for one in sizes]} GiB"


@relation
def idle_replicas_never_help(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Beyond one replica a request more of them add nothing."""
    load = question.options["concurrency"]
    if load > 8 or "dp" in question.options:
        raise Unasked
    alone = question.but(tp=question.options.get("tp", 1), pp=question.options.get("pp", 1))
    size = alone.options["tp"] * alone.options["pp"]
    a, b = (tokens_per_s(ask.variant(alone.but(gpus=size * n, replicas=n))) for n in (load, 2 * load))
    return f"{a:.6g} tok/s on {load} replicas, {b:.6g} on twice as many" if b > a * (1 + 1e-9) else None


@relation
def twice_of_all_is_twice(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Two engines with twice the requests make twice the tokens, each as soon."""
    if "dp" in question.options or question.options["concurrency"] > 256:
        raise Unasked
    two = ask.variant(question.but(gpus=2 * question.gpus, replicas=2, concurrency=2 * question.options["concurrency"]))
    a, b = tokens_per_s(answer), tokens_per_s(two) / 2
    return None if abs(b - a) <= a * 1e-9 else f"{a:.6g} tok/s, {b:.6g} from each of two engines"


@relation
def more_bandwidth_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    card = find(question.card)
    figure = card.bandwidth_bytes_per_s
    wide = replace(card, bandwidth_bytes_per_s=replace(figure, value=figure.value * 1.5))
    a, b = (tokens_per_s(ask.variant(question, tl.Cluster.of(one, question.gpus))) for one in (card, wide))
    return f"{a:.6g} tok/s, {b:.6g} with half as much bandwidth again" if b < a * (1 - 1e-6) else None


@relation
def more_requests_never_fewer_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    a = tokens_per_s(answer)
    b = tokens_per_s(ask.variant(question.but(concurrency=2 * question.options["concurrency"])))
    return f"{a:.6g} tok/s, {b:.6g} with twice the requests" if b < a * (1 - 1e-6) else None


@relation
def more_slots_never_fewer_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """While requests wait for one: a slot that is free is filled at once, and stands idle while the next request is on its way
    where none waits. Slots cost memory, of logits and graphs, in llama.cpp for which layers leave the card."""
    busy = question.but(concurrency=512 * question.options.get("dp", 1))
    few, many = (ask.variant(busy.but(max_seqs=slots)) for slots in (32, 64))
    if few.uses_host or many.uses_host or not (few.fits and many.fits and few.cache and many.cache):
        raise Unasked
    if many.cache.tokens.value < few.cache.tokens.value:
        raise Unasked
    if few.speed is None or not few.speed.ttft_lines.get("slot"):
        raise Unasked  # requests are with the host, none waits for a slot
    a, b = tokens_per_s(few), tokens_per_s(many)
    return f"{a:.6g} tok/s in 32 slots, {b:.6g} in 64" if b < a * (1 - 1e-6) else None


@relation
def longer_prompts_never_sooner(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    longer = ask.variant(question.but(isl=2 * question.options["isl"]))
    if not (answer.speed and answer.speed.ttft_s and longer.speed and longer.speed.ttft_s):
        raise Unasked
    first = [one.speed.ttft_s.interval.value for one in (answer, longer)]
    return f"first token after {first[0]:.5g} s, {first[1]:.5g}" if first[1] < first[0] * (1 - 1e-6) else None


@relation
def prefix_hits_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    a, b = (tokens_per_s(ask.variant(question.but(prefix_hit=share))) for share in (0.0, 0.5))
    return f"{a:.6g} tok/s, {b:.6g} where half of the prompt is known" if b < a * (1 - 1e-6) else None


@relation
def no_graphs_never_fewer_cache_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    with_, without = (ask.variant(question.but(eager=eager)) for eager in (False, True))
    if not (with_.cache and without.cache):
        raise Unasked
    a, b = with_.cache.tokens.value, without.cache.tokens.value
    return f"{a:,.0f} tokens beside graphs, {b:,.0f} without" if b < a * (1 - 1e-9) else None


@relation
def more_free_memory_never_fewer_cache_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """With the slots stated where the engine cuts its cache into them: chosen, they may be fewer of more memory, which then keeps
    all layers on the cards."""
    question = slots_stated(question, answer)
    room = answer.memory.capacity_bytes / 2**30
    less, more = (ask.variant(question.but(free_gib=room * share)) for share in (0.8, 0.9))
    if not (less.cache and more.cache):
        raise Unasked
    a, b = less.cache.tokens.value, more.cache.tokens.value
    return f"{a:,.0f} tokens with {room * 0.8:.1f} GiB free, {b:,.0f} with more" if b < a * (1 - 1e-9) else None


#: What a command does not say, and a check is told.
_BESIDE = ("host", "network", "draft")


def checked(answer: tl.Estimate, question: Asked, ask: Answers) -> str | None:
    """How ``answer`` and the one to its own command differ, told the same load; where the command names files, or weights that
    are still to be made, to the script that export writes."""
    if answer.command is None or answer.refused or len(answer.commands) > 1 or answer.question.plan.pool.replicas > 1:
        raise Unasked  # the command of one engine of several
    if answer.question.plan.engine.name == "mlx-lm":
        raise Unasked  # its server is not told the longest request
    ask.asked += 1
    load = answer.question.workload
    told = {
        "isl": (load.isl or 0) - (load.image_tokens or 0),
        "osl": load.osl,
        "concurrency": load.concurrency,
        "prefix_hit": load.prefix_hit,
    }
    told |= {"sampling": load.sampling, "images": load.images}
    told |= {name: question.options[name] for name in _BESIDE if name in question.options}
    alone = answer.question.checkpoint is None and ".yaml" not in answer.command
    with nullcontext(answer.command) if alone else exported(answer) as words:
        try:
            again = tl.check(words, gpu=question.cards, **told)
        except tl.InputError as error:
            return f"refused: {error}: {answer.command}"
    if again.question.cluster.gpus < answer.question.cluster.gpus:
        raise Unasked  # the command of one whole copy of several
    apart = difference(figures(answer), figures(again))
    return None if apart is None else f"{apart}: {answer.command}"


@contextmanager
def exported(answer: tl.Estimate) -> Iterator[str]:
    """The script that `trilemma export` writes, in its folder."""
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        Path("estimate.json").write_text(json.dumps(document(answer)))
        engine = answer.question.engine
        if main(["export", "estimate.json", "--to", engine, "-o", "."]) != 0 or not Path("serve.sh").is_file():
            raise Unasked
        if answer.question.checkpoint is not None and not Path("prediction.json").is_file():
            raise Unasked  # of a plan without a speed nothing says what the weights to be made are
        yield "bash serve.sh"


@relation
def its_command_checked_gives_the_same(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    return checked(answer, question, ask)


@relation
def no_upgrade_from_itself(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if answer.command is None or answer.refused or answer.question.checkpoint is not None or ".yaml" in answer.command:
        raise Unasked
    ask.asked += 2
    try:
        found = tl.upgrade(answer.command, gpu=question.cards, old=answer.version, new=answer.version)
    except tl.InputError as error:
        return f"refused: {error}: {answer.command}"
    moved = [name for name in ("refused", "renamed", "rules", "options") if getattr(found, name)]
    apart = difference(figures(found.before), figures(found.after))
    return f"{', '.join(moved)} {apart or ''}: {answer.command}" if moved or apart else None


def searched(question: Asked) -> dict[str, Any]:
    """Keywords of a search for the load of a question, by its engine."""
    told = {name: question.options[name] for name in ("isl", "osl", "concurrency")}
    return {**told, "engine": question.options.get("engine", "vllm")}


@relation
def best_plan_asked_again(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """The first plan of a search, asked of `fit`, and its command of `check`: the same figures."""
    ask.asked += 2
    try:
        best = tl.plan(question.model, question.cards, **searched(question)).best
    except tl.InputError:
        raise Unasked from None
    if best is None:
        raise Unasked
    apart = difference(figures(best), figures(tl.fit(best.question)))
    if apart is not None:
        return f"{best.summary}: {apart}"
    try:
        return checked(best, question.but(**dict.fromkeys(_BESIDE)), ask)
    except Unasked:
        return None


@relation
def plan_and_compare_agree(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    ask.asked += 2
    try:
        best = tl.plan(question.model, question.cards, **searched(question)).best
        candidate = tl.compare(question.model, [question.cards], **searched(question)).candidates[0]
    except tl.InputError:
        raise Unasked from None
    if candidate.instead_of:
        raise Unasked
    if best is None or candidate.best is None:
        return None if best is None and candidate.best is None else f"{best}, compared {candidate.best}"
    return difference(figures(best), figures(candidate.best.estimate))


RELATIONS |= of_options.RELATIONS
