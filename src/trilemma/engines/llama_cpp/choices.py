"""Slots, context and layers of a start: as asked for, as the build does by default, or as ``--fit`` makes them fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from trilemma.engines.llama_cpp.cards import Choices, cache_format, card_bytes, cells_of
from trilemma.engines.llama_cpp.facts import LlamaCppFacts
from trilemma.engines.llama_cpp.placement import LayerBytes, splits
from trilemma.errors import InputError, PlanWarning
from trilemma.formats import catalogue
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import ServeOptions
from trilemma.quantities import MIB, round_up, show_count

#: Options that place tensors: beside them ``--fit`` places none (common/fit.cpp).
_PLACING = ("cpu-moe", "n-cpu-moe", "n-cpu-ffn", "override-tensor")


def settle(
    model: Model, options: ServeOptions, facts: LlamaCppFacts, pieces: LayerBytes, rows: int, free: Sequence[float]
) -> tuple[Choices, ServeOptions, list[PlanWarning]]:
    """Slots, context and layers as asked for; where they are not, what ``--fit`` makes of the cards.

    ``free`` are the bytes of each card. The options come back with the experts that are left on the host (``n-cpu-moe``).
    """
    extra, plan = options.extra, _as_asked(model, options, facts)
    if not _switched_on(extra.get("fit", "on" if facts.fits_itself else "off")):
        return plan, options, []
    margin = _margin(extra, facts)
    ends, cards = splits(options, free), len(free)
    notes: list[PlanWarning] = []

    def over(one: Choices, placed: LayerBytes = pieces) -> bool:
        return any(
            card_bytes(index, model, placed, one, options, facts, ends, rows).total > memory - margin
            for index, memory in enumerate(free)
        )

    if options.context is None and over(plan):
        context = plan.context
        plan = _shorter(plan, over, facts, int(extra.get("fit-ctx") or facts.fit_least_context), context)
        message = f"--fit cuts the context from {show_count(context)} to {show_count(plan.context)} tokens"
        notes.append(PlanWarning(code="context-cut", message=message))
    placed_by_engine = _layers_asked(extra, len(model.layers)) is None and facts.layers_on_card == "all"
    if placed_by_engine and over(plan):
        if any(extra.get(name) for name in _PLACING) or rows > 1 or (cards > 1 and extra.get("tensor-split")):
            message = "--fit moves nothing to the host beside options that place tensors, --tensor-split or rows"
            notes.append(PlanWarning(code="fit-without-effect", message=message))
            return plan, options, notes
        plan, options, note = _to_host(model, plan, options, over)
        notes.append(note)
    return plan, options, notes


def _as_asked(model: Model, options: ServeOptions, facts: LlamaCppFacts) -> Choices:
    """Slots, context and layers as the command states them or the build has them by default."""
    extra, depth = options.extra, len(model.layers)
    stated = 0 if options.max_seqs is None else int(options.max_seqs)
    slots = stated if stated > 0 else facts.slots["number"]
    shared = bool(extra.get("kv-unified", facts.slots["shared"] and options.max_seqs is None))
    longest = model.max_positions or int(facts.coefficients["unstated"]["context"])
    context = int(round_up(options.context or facts.context or longest, facts.context_padding))
    layers = _layers_asked(extra, depth)
    if layers is None:
        layers = depth + 1 if facts.layers_on_card == "all" else 0
    keys = cache_format(options.kv_dtype, "--cache-type-k")
    values = cache_format(extra.get("cache-type-v"), "--cache-type-v") if extra.get("cache-type-v") else None
    given = extra.get("flash-attn")
    return Choices(
        context=context, cells=cells_of(context, slots, shared, facts), slots=slots, shared=shared, layers=layers,
        micro_batch=int(options.max_batched_tokens or facts.micro_batch), keys=keys,
        values=values or (keys if options.kv_dtype else catalogue.get("fp16")),
        flash=facts.flash_attention if given in (None, "auto") else _switched_on(given),
    )  # fmt: skip


def _switched_on(word: Any) -> bool:
    return str(word).lower() in ("on", "true", "1")


def _shorter(plan: Choices, over: Any, facts: LlamaCppFacts, least: int, most: int) -> Choices:
    """The longest context between ``least`` and ``most`` with which the cards hold all, else the least."""
    low, high = min(least, most), most
    while high - low > facts.context_padding:
        middle = (low + high) // 2 // facts.context_padding * facts.context_padding
        tried = replace(plan, context=middle, cells=cells_of(middle, plan.slots, plan.shared, facts))
        low, high = (low, middle) if over(tried) else (middle, high)
        if middle in (0, low) and over(tried):
            break
    return replace(plan, context=low, cells=cells_of(low, plan.slots, plan.shared, facts))


def _to_host(
    model: Model, plan: Choices, options: ServeOptions, over: Callable[..., bool]
) -> tuple[Choices, ServeOptions, PlanWarning]:
    """What ``--fit`` leaves on the host: as few experts as will do, and whole layers where all experts do not suffice.

    Whole layers and whole stacks here; the engine also splits the first of them (common/fit.cpp, steps 3 and 4).
    """
    depth = len(model.layers)

    def placed(number: int) -> tuple[ServeOptions, LayerBytes]:
        moved = replace(options, extra={**options.extra, "n-cpu-moe": number})
        return moved, LayerBytes.of(model, moved)

    mixtures = [layer.index for layer in model.layers if isinstance(layer.ffn, ExpertFfn)]
    if mixtures and not over(plan, placed(depth)[1]):
        number = least(depth, lambda number: not over(plan, placed(number)[1]))
        away = sum(index < number for index in mixtures)
        message = f"--fit leaves the experts of {away} of {len(mixtures)} layers on the host"
        return plan, placed(number)[0], PlanWarning(code="experts-on-host", message=message)
    moved, pieces = placed(depth) if mixtures else (options, LayerBytes.of(model, options))
    off = least(depth + 1, lambda number: not over(replace(plan, layers=depth + 1 - number), pieces))
    beside = " without their experts" if mixtures else ""
    message = f"--fit puts {depth + 1 - off} of {depth + 1} layers on the cards{beside}, the others stay on the host"
    return replace(plan, layers=depth + 1 - off), moved, PlanWarning(code="layers-on-host", message=message)


def least(most: int, good: Callable[[int], bool]) -> int:
    """The least number up to ``most`` that is ``good``, where every larger one is too; ``most`` where none is."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle + 1, high)
    return low


def _margin(extra: Any, facts: LlamaCppFacts) -> float:
    text = str(extra.get("fit-target") or facts.fit_margin_mib)
    try:
        return max(float(part) for part in text.split(",")) * MIB
    except ValueError:
        raise InputError(f"--fit-target {text[:60]!r} is not a number of MiB such as 1024") from None


def _layers_asked(extra: Any, depth: int) -> int | None:
    given = extra.get("n-gpu-layers")
    if given is None or str(given).lower() in ("auto", "-1"):
        return None
    if str(given).lower() == "all":
        return depth + 1
    try:
        number = int(str(given))
    except ValueError:
        raise InputError(f"--n-gpu-layers {str(given)[:60]!r} is neither a number, auto nor all") from None
    return depth + 1 if number < 0 else min(number, depth + 1)
