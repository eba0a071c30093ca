"""Another engine on the cards at hand, where the one asked for does not start there: it costs no card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from trilemma import engines
from trilemma.engines import traits_of
from trilemma.engines.cards import that_run_on
from trilemma.engines.translation import for_engine
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Plan, ServeOptions
from trilemma.search.precisions import AS_PUBLISHED, WeightPrecision, precisions

#: (words, plan, weights, what it costs in answers)
OtherEngine = tuple[str, Plan, WeightPrecision, str]


def on_other_engines(
    plan: Plan,
    model: Model,
    accelerator: Accelerator,
    tried: Callable[[Plan, Model], Estimate | None],
    *,
    readers: int,
) -> Iterator[OtherEngine]:
    """For each other engine with rules for the cards the first way in which it starts there, for so many ``readers`` at once.

    The widest weights that lie on the cards alone: as published, or one of its own narrower mixes; else the quickest with a
    part in the memory of the host, where the engine can.
    """
    mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    bare = replace(plan, pools=tuple(replace(pool, options=_bare(pool.options)) for pool in plan.pools))
    for name in that_run_on(accelerator):
        traits = traits_of(name)
        if traits is traits_of(plan.engine.name) or not traits.deploys or traits.built_on is not None:
            continue
        try:
            other = for_engine(bare, name, mixture=mixture, requests=readers)
        except InputError:
            continue
        stored = precisions(model, accelerator, None, engine=name)
        label = f"{traits.label} instead of {traits_of(plan.engine.name).label}"
        mixes = stored if traits.weights == "gguf" else stored[:1]
        answers = [(one, answer) for one in mixes if (answer := tried(other, one.model)) is not None and answer.fits]
        alone = [(one, answer) for one, answer in answers if not answer.uses_host]
        for one, answer in alone[:1] or sorted(answers, key=_seconds)[:1]:
            words = label if one.name == AS_PUBLISHED else f"{label}, with {one.name} weights"
            beside = ", what the cards do not hold in the memory of the host" if answer.uses_host else ""
            yield words + beside, other, one, one.quality
        if not answers:
            yield from _beside_the_cards(other, stored[0], label, tried)


def _beside_the_cards(
    plan: Plan, weights: WeightPrecision, label: str, tried: Callable[[Plan, Model], Estimate | None]
) -> Iterator[OtherEngine]:
    """What the engine itself can leave on the host."""

    def with_options(options: ServeOptions) -> Plan:
        return replace(plan, pools=(replace(plan.pool, options=options),))

    def fits(options: ServeOptions) -> bool:
        answer = tried(with_options(options), weights.model)
        return answer is not None and answer.fits

    for words, options, _, quality in engines.get(plan.engine.name).changes(plan, weights.model, fits):
        if fits(options):
            yield f"{label}, {words}", with_options(options), weights, quality
            return


def _seconds(found: tuple[WeightPrecision, Estimate]) -> float:
    speed = found[1].speed
    return speed.tpot_s.interval.value if speed is not None and speed.tpot_s is not None else inf


def _bare(options: ServeOptions) -> ServeOptions:
    """Options that any engine has: how the other one stores weights and cache is its own."""
    return ServeOptions(context=options.context, max_seqs=options.max_seqs)
